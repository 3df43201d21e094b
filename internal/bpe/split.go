package bpe

import "unicode/utf8"

// GPT-2 cuts text into pieces before it merges bytes, by this pattern, leftmost alternative first:
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// So a piece is a contraction's tail; a run of letters, of numbers or of anything else, with the one space before it;
// or a run of white space, which leaves its last character to the piece that follows.

// span is a closed range of code points.
type span struct{ first, last rune }

// class is what the pattern can tell about a character.
type class uint8

const (
	other class = iota
	letter
	number
	space
	multibyte // in the byte table alone: the character is more than one byte long
)

// classes holds the class of every byte that is a character, and of every code point in two bits.
type classes struct {
	bytes [256]class
	runes [(utf8.MaxRune + 1) / 4]uint8
}

func newClasses() *classes {
	c := new(classes)
	for k, spans := range map[class][]span{letter: letters, number: numbers, space: spaces} {
		for _, s := range spans {
			for r := s.first; r <= s.last; r++ {
				c.runes[r/4] |= uint8(k) << (r % 4 * 2)
			}
		}
	}
	for b := range c.bytes {
		c.bytes[b] = multibyte
		if b < utf8.RuneSelf {
			c.bytes[b] = c.rune(rune(b))
		}
	}
	return c
}

func (c *classes) rune(r rune) class { return class(c.runes[r/4] >> (r % 4 * 2) & 3) }

// at returns the class and length of the character at text[i]. A byte that is not UTF-8 is a character of its own.
func (c *classes) at(text []byte, i int) (class, int) {
	if k := c.bytes[text[i]]; k != multibyte {
		return k, 1
	}
	r, size := utf8.DecodeRune(text[i:])
	return c.rune(r), size
}

// run returns the end of the run of class k that reaches text[p].
func (c *classes) run(text []byte, p int, k class) int {
	for p < len(text) {
		got := c.bytes[text[p]]
		if got == k {
			p++
			continue
		}
		if got != multibyte {
			break
		}
		r, size := utf8.DecodeRune(text[p:])
		if c.rune(r) != k {
			break
		}
		p += size
	}
	return p
}

// next returns the end of the piece that begins at text[i].
func (c *classes) next(text []byte, i int) int {
	if text[i] == '\'' {
		if n := contraction(text[i+1:]); n > 0 {
			return i + 1 + n
		}
	}
	k, size := c.at(text, i)
	p := i + size
	if text[i] == ' ' && p < len(text) {
		if after, size := c.at(text, p); after != space {
			return c.run(text, p+size, after)
		}
	}
	if k != space {
		return c.run(text, p, k)
	}
	last := i // where the run's last character begins
	for p < len(text) {
		k, size := c.at(text, p)
		if k != space {
			break
		}
		last, p = p, p+size
	}
	if p == len(text) || last == i {
		return p
	}
	return last
}

// contraction returns how many bytes of text finish a contraction whose apostrophe is just before it.
func contraction(text []byte) int {
	if len(text) == 0 {
		return 0
	}
	switch text[0] {
	case 's', 't', 'm', 'd':
		return 1
	case 'r', 'v':
		if len(text) > 1 && text[1] == 'e' {
			return 2
		}
	case 'l':
		if len(text) > 1 && text[1] == 'l' {
			return 2
		}
	}
	return 0
}

// Cut returns the last place at which text can be cut so that its two parts encode to what the whole would, whatever
// follows it; 0 if there is none.
//
// No piece holds white space after something else, so before white space is the best place; the end of a run of
// letters or numbers serves where there is no white space.
func (v *Vocab) Cut(text []byte) int {
	c := v.classes
	fallback := 0
	for p := len(text); p > 0; {
		r, size := utf8.DecodeLastRune(text[:p])
		before := c.rune(r)
		if p < len(text) {
			after, _ := c.at(text, p)
			if before != space && after == space {
				return p
			}
			if fallback == 0 && (before == letter || before == number) && after != before && utf8.FullRune(text[p:]) {
				fallback = p
			}
		}
		p -= size
	}
	return fallback
}
