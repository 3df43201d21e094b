package oom

import _ "embed"

// Example is the failure that `snug doctor` explains when it is given none: nanoGPT with batch 64 and block 1024 on a
// card of 11.69 GiB.
//
//go:embed testdata/corpus/nanogpt-incident.log
var Example []byte
