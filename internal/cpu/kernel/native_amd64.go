package kernel

import "golang.org/x/sys/cpu"

// native are the sets written for this processor, the fastest last.
func native() []*Set {
	var list []*Set
	if cpu.X86.HasAVX512BF16 && cpu.X86.HasAMXBF16 && cpu.X86.HasAMXTile && allowAMX() {
		s := Plain()
		s.Name, s.F32, s.BF16 = "amx", amxSplit(), amxBF16()
		list = append(list, s)
	}
	return list
}
