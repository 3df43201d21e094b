//go:build !linux

package gpu

// ProcessFacts knows nothing here: commands and ages come from /proc.
func ProcessFacts(int) Facts { return Facts{} }
