package kernel

import "syscall"

// allowAMX asks Linux for the tile registers, which a process must do before it first uses them; it holds for all threads.
// It is refused by kernels before 5.16 and where a thread's signal stack is too small for them.
func allowAMX() bool {
	const (
		archReqXcompPerm = 0x1023
		xtileData        = 18
	)
	_, _, errno := syscall.RawSyscall(syscall.SYS_ARCH_PRCTL, archReqXcompPerm, xtileData, 0)
	return errno == 0
}
