package cpu

import "syscall"

// takeMemory maps n bytes of zeros, in huge pages where the system has them: a step walks through gigabytes.
func takeMemory(n int) ([]byte, error) {
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, err
	}
	_ = syscall.Madvise(b, syscall.MADV_HUGEPAGE) // only advice: without huge pages it is slower, not wrong
	return b, nil
}

func returnMemory(b []byte) error { return syscall.Munmap(b) }
