package oom

// scanner finds many literals in one pass: an Aho-Corasick automaton over bytes folded to lower case.
//
// One table look-up a byte, whatever the number of literals: a gigabyte of progress bars passes in seconds.
type scanner struct {
	class [256]uint8 // bytes that no literal holds share class 0
	width int
	next  []uint16 // state*width + class -> state
	found [][]int  // literals that end in a state
	ends  []bool   // whether any does
}

func newScanner(literals []string) *scanner {
	s := &scanner{width: 1}
	for _, l := range literals {
		for i := range len(l) {
			if c := l[i]; s.class[c] == 0 {
				s.class[c] = uint8(s.width)
				s.width++
			}
		}
	}
	for c := 'A'; c <= 'Z'; c++ {
		s.class[c] = s.class[c+'a'-'A']
	}
	s.grow()
	for id, l := range literals {
		s.add(l, id)
	}
	s.link()
	s.ends = make([]bool, len(s.found))
	for state, ids := range s.found {
		s.ends[state] = len(ids) > 0
	}
	return s
}

func (s *scanner) grow() uint16 {
	s.next = append(s.next, make([]uint16, s.width)...)
	s.found = append(s.found, nil)
	return uint16(len(s.found) - 1)
}

func (s *scanner) add(literal string, id int) {
	state := uint16(0)
	for i := range len(literal) {
		at := int(state)*s.width + int(s.class[literal[i]])
		if s.next[at] == 0 {
			child := s.grow()
			s.next[at] = child
		}
		state = s.next[at]
	}
	s.found[state] = append(s.found[state], id)
}

// link fills the missing transitions, breadth first, with those of the longest proper suffix.
func (s *scanner) link() {
	fail := make([]uint16, len(s.found))
	queue := make([]uint16, 0, len(s.found))
	for c := range s.width {
		if child := s.next[c]; child != 0 {
			queue = append(queue, child)
		}
	}
	for len(queue) > 0 {
		state := queue[0]
		queue = queue[1:]
		for c := range s.width {
			at := int(state)*s.width + c
			fallback := s.next[int(fail[state])*s.width+c]
			if child := s.next[at]; child != 0 {
				fail[child] = fallback
				s.found[child] = append(s.found[child], s.found[fallback]...)
				queue = append(queue, child)
			} else {
				s.next[at] = fallback
			}
		}
	}
}

// hit is one literal found, and where it ends.
type hit struct {
	literal, end int
}

// scan appends the literals found in line to hits, in the order of their ends.
func (s *scanner) scan(line []byte, hits []hit) []hit {
	state := 0
	for i, b := range line {
		state = int(s.next[state*s.width+int(s.class[b])])
		if s.ends[state] {
			for _, id := range s.found[state] {
				hits = append(hits, hit{id, i + 1})
			}
		}
	}
	return hits
}
