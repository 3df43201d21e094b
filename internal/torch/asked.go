package torch

import "github.com/snugml/snug/internal/units"

// Asked is what PyTorch's message says it tried to allocate for a tensor of that many bytes: the segment that would
// have held it.
func (c AllocConf) Asked(bytes units.Bytes) units.Bytes {
	return units.Bytes(segmentSize(c.round(int64(bytes))))
}
