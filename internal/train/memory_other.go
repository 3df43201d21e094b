//go:build !linux && !darwin && !windows

package train

import "github.com/snugml/snug/internal/units"

func freeMemory() units.Bytes { return 0 }
