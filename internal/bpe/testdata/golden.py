"""Writes golden.json: texts and the tokens that tiktoken's gpt2 gives them (r50k_base is the same vocabulary and pattern).

    pip install tiktoken && python testdata/golden.py
"""
import json
import os
import random

import tiktoken

enc = tiktoken.get_encoding("r50k_base")
texts = [
    "", " ", "  ", "\n", "\n\n", " \n", "\n ", "a ", "a  ", " a", "  a", "\t\ta", "a\r\n\r\nb", "hello world", "Hello, world!",
    "I'm you're he's we've they'll I'd don't", "I'M YOU'RE HE'S", "'s's't'", "'", "''", " '", "' s", "x'sy", "'llama 'vera 'real 'dad",
    "it’s ‘quoted’ “text”", "3.14159 1,000,000 2024-06-01T12:00:00Z 0xdeadbeef v1.2.3", "½ ² ① Ⅷ ٣٤ ४५ 一二三",
    "def f(x):\n    if x:\n        return  {\"a\": [1, 2, 3]}\n\n\n    # done\n", "for (int i = 0; i < n; ++i) { a[i] <<= 2; }\t// shift",
    "<html><body class=\"x\">&nbsp;</body></html>", "https://example.org/a/b?c=d&e=%20#f", "user@example.org", "C:\\Temp\\x.txt",
    " " * 5 + "x" + " " * 17 + "y" + " " * 100, "\t" * 9 + "x", "\n" * 50 + "x", "\u3000\u3000全角\u00a0\u2003x\u2028y\u0085z",
    "Größe, naïve café, façade, Ærøskøbing, İstanbul, ŁÓDŹ", "Zażółć gęślą jaźń. Příliš žluťoučký kůň.", "Быстрая лиса прыгает через ленивую собаку.",
    "Η γρήγορη αλεπού πηδά πάνω από το σκυλί.", "השועל המהיר קופץ מעל הכלב", "الثعلب السريع يقفز فوق الكلب الكسول ١٢٣", "तेज़ लोमड़ी आलसी कुत्ते के ऊपर कूदती है।",
    "เร็วสุนัขจิ้งจอกสีน้ำตาลกระโดด", "敏捷的棕色狐狸跳过了懒狗。今天天气很好，我们去公园吧！", "素早い茶色の狐がのろまな犬を飛び越える。カタカナとひらがな。", "빠른 갈색 여우가 게으른 개를 뛰어넘는다.",
    "🙂 👍🏽 👨‍👩‍👧‍👦 🇩🇪🇯🇵 ❤️ ✨", "e\u0301 n\u0303 a\u0308", "\u200b\u200d\ufeff", "∑∫√∞ ≤ ≥ ≠ → ⇒ αβγ ℝ ℵ₀", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 𐍈 𠜎", "\x00\x01\x7f\x1b[31m",
    "<|endoftext|>", "a<|endoftext|>b", "a" * 100, "ab" * 200, "ACGT" * 300, "=" * 300, "-" * 47, "x" * 48, "y" * 49, "1" * 64,
    "Lorem ipsum " * 40, "pneumonoultramicroscopicsilicovolcanoconiosis antidisestablishmentarianism",
    "\U00011380\U00011381a \U000105c0\U00010d40", "\ua7cb\ua7dc", "\u1c89b",
]
random.seed(4)
alphabets = [
    "ab' \n", "aZ1.,'\" \t\n", "'stmdrevl ", " \n\r\t\x0b\x0c\u00a0\u3000a", "é日1 ½🙂'", "abcdefghijklmnopqrstuvwxyz ",
]
for alphabet in alphabets:
    texts += ["".join(random.choices(alphabet, k=random.randint(1, 60))) for _ in range(40)]
for _ in range(100):  # any code point but the surrogates
    texts.append("".join(chr(random.choice([random.randint(0, 0xD7FF), random.randint(0xE000, 0x10FFFF), 32, 39])) for _ in range(20)))
cases = [{"text": t, "ids": enc.encode_ordinary(t)} for t in texts]
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "golden.json"), "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")
