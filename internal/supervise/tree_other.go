//go:build unix && !linux

package supervise

// descendants are not known here: the process group is all that is swept.
func descendants(int) []process { return nil }

func startOf(int) string { return "" }
