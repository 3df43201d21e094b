//go:build !unix

package prepare

func ignoreFileSizeSignal() {}
