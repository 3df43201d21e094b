package train

import (
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/snugml/snug/internal/units"
)

// freeMemory is the physical memory that GlobalMemoryStatusEx calls available.
//
//	BOOL GlobalMemoryStatusEx(LPMEMORYSTATUSEX)
func freeMemory() units.Bytes {
	var s struct {
		length, load                                                                            uint32
		totalPhys, availPhys, totalPage, availPage, totalVirtual, availVirtual, availExtVirtual uint64
	}
	s.length = uint32(unsafe.Sizeof(s))
	ok, _, _ := windows.NewLazySystemDLL("kernel32.dll").NewProc("GlobalMemoryStatusEx").Call(uintptr(unsafe.Pointer(&s)))
	if ok == 0 {
		return 0
	}
	return units.Bytes(s.availPhys)
}
