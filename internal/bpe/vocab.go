// Package bpe turns text into GPT-2's tokens and back.
//
// It owns GPT-2's pre-tokenizer, its merges and the text of each token: the same tokens as tiktoken's gpt2 gives with
// encode_ordinary. The vocabulary is that of github.com/tiktoken-go/tokenizer; its tables are built when GPT2 is first
// called. It reads no files and knows nothing of documents or data sets.
//
// Text is bytes. A byte that is not UTF-8 is taken for a character that is neither letter, number nor space, and
// keeps its value, so decoding returns any input unchanged.
package bpe

import (
	"fmt"
	"strings"
	"sync"

	"github.com/tiktoken-go/tokenizer/codec"
)

const (
	// VocabSize is the number of GPT-2's tokens.
	VocabSize = 50257
	// EndOfText is the token that stands between documents.
	EndOfText = 50256
	// EndOfTextMark is how EndOfText is written in prompts and samples.
	EndOfTextMark = "<|endoftext|>"
)

// Vocab is GPT-2's vocabulary. It never changes: any number of goroutines may use it.
type Vocab struct {
	tokens  []string          // text of each token but EndOfText
	ids     map[string]uint16 // the reverse
	classes *classes
	bytes   [256]uint16 // token of a single byte
	pairs   pairTable
}

// GPT2 returns GPT-2's vocabulary, built by the first call.
var GPT2 = sync.OnceValue(newGPT2)

func newGPT2() *Vocab {
	source := codec.NewR50kBase()
	v := &Vocab{tokens: make([]string, EndOfText), ids: make(map[string]uint16, EndOfText), classes: newClasses()}
	for id := range v.tokens {
		text, err := source.Decode([]uint{uint(id)})
		if err != nil {
			panic(fmt.Sprintf("bpe: the vocabulary lacks token %d: %v", id, err))
		}
		v.tokens[id] = text
		v.ids[text] = uint16(id)
	}
	for b := range v.bytes {
		v.bytes[b] = v.ids[string([]byte{byte(b)})]
	}
	v.pairs = newPairTable(v)
	return v
}

// Encode returns the tokens of a text, as tiktoken's encode_ordinary: EndOfTextMark is text like any other.
func (v *Vocab) Encode(text string) []uint16 {
	return v.NewEncoder().Append(nil, []byte(text))
}

// EncodePrompt returns the tokens of a prompt, in which EndOfTextMark stands for EndOfText.
// The error is always nil: it is there so that GPT-2's tokens and a data set's characters serve one interface.
func (v *Vocab) EncodePrompt(text string) ([]uint16, error) {
	e := v.NewEncoder()
	var ids []uint16
	for i, part := range strings.Split(text, EndOfTextMark) {
		if i > 0 {
			ids = append(ids, EndOfText)
		}
		ids = e.Append(ids, []byte(part))
	}
	return ids, nil
}

// AppendDecode appends the text of ids to dst. A character may be spread over several tokens, so the text of some
// tokens alone need not be UTF-8.
func (v *Vocab) AppendDecode(dst []byte, ids ...uint16) ([]byte, error) {
	for _, id := range ids {
		switch {
		case int(id) < len(v.tokens):
			dst = append(dst, v.tokens[id]...)
		case id == EndOfText:
			dst = append(dst, EndOfTextMark...)
		default:
			return dst, fmt.Errorf("decode token %d: GPT-2 has %d tokens", id, VocabSize)
		}
	}
	return dst, nil
}

// pairTable maps two neighbouring tokens to the token of their joined text: every way to halve every token.
//
// It is a hash table with open addressing. A slot is first<<32 | second<<16 | joined, and 0 is an empty slot: no pair
// joins to token 0, which is a single byte.
type pairTable struct {
	slots []uint64
	shift uint
}

// noPair is what pairs that join to no token give. It is above every token, so it never is the lowest rank.
const noPair = 1<<16 - 1

func newPairTable(v *Vocab) pairTable {
	const bits = 18 // 108,299 pairs fill two fifths of it
	t := pairTable{slots: make([]uint64, 1<<bits), shift: 64 - bits}
	for id, text := range v.tokens {
		for cut := 1; cut < len(text); cut++ {
			first, ok := v.ids[text[:cut]]
			if !ok {
				continue
			}
			if second, ok := v.ids[text[cut:]]; ok {
				t.insert(uint64(first)<<16|uint64(second), uint16(id))
			}
		}
	}
	return t
}

func (t *pairTable) insert(key uint64, joined uint16) {
	i := t.hash(key)
	for t.slots[i] != 0 {
		i = (i + 1) & uint64(len(t.slots)-1)
	}
	t.slots[i] = key<<16 | uint64(joined)
}

func (t *pairTable) hash(key uint64) uint64 { return key * 0x9e3779b97f4a7c15 >> t.shift }

// join returns the token of the joined text of first and second, or noPair.
func (t *pairTable) join(first, second uint16) uint16 {
	key := uint64(first)<<16 | uint64(second)
	for i := t.hash(key); ; i = (i + 1) & uint64(len(t.slots)-1) {
		slot := t.slots[i]
		if slot>>16 == key && slot != 0 {
			return uint16(slot)
		}
		if slot == 0 {
			return noPair
		}
	}
}
