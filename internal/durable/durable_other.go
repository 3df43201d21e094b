//go:build !unix && !windows

package durable

import "os"

func syncDir(string) error { return nil }

func lockFile(*os.File) error { return nil }
