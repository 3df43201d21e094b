package metrics

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"time"
)

// Events writes a TensorBoard event file: records of length, CRC, protobuf, CRC. Each record is one write.
//
// Messages (tensorflow/core/util/event.proto, framework/summary.proto): Event{double wall_time = 1; int64 step = 2;
// string file_version = 3; Summary summary = 5; SessionLog session_log = 7}, Summary{repeated Value value = 1},
// Value{string tag = 1; float simple_value = 2}, SessionLog{status = 1, START = 1}.
type Events struct {
	f   *os.File
	now func() time.Time
}

// Scalar is one value of a step.
type Scalar struct {
	Tag   string
	Value float64
}

// NewEvents creates an event file in dir for a run that begins at iteration from. What earlier files in dir say of later
// steps is replaced: TensorBoard drops it when it meets a session's start. The estimate at from itself, made before the
// checkpoint, stays.
func NewEvents(dir string, from int) (*Events, error) { return newEvents(dir, from, time.Now) }

func newEvents(dir string, from int, now func() time.Time) (*Events, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("tensorboard: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	path := filepath.Join(dir, fmt.Sprintf("events.out.tfevents.%010d.%s.%d.0", now().Unix(), filepath.Base(host), os.Getpid()))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		return nil, fmt.Errorf("tensorboard: %w", err)
	}
	e := &Events{f: f, now: now}
	version := appendBytes(e.event(0), 3, []byte("brain.Event:2"))
	if from > 0 {
		from++
	}
	start := appendBytes(e.event(from), 7, []byte{1 << 3, 1})
	if err := errors.Join(e.write(version), e.write(start)); err != nil {
		f.Close()
		return nil, err
	}
	return e, nil
}

// Write appends the scalars of one step.
func (e *Events) Write(step int, scalars ...Scalar) error {
	var summary []byte
	for _, s := range scalars {
		value := appendBytes(nil, 1, []byte(s.Tag))
		value = append(value, 2<<3|5)
		value = binary.LittleEndian.AppendUint32(value, math.Float32bits(float32(s.Value)))
		summary = appendBytes(summary, 1, value)
	}
	return e.write(appendBytes(e.event(step), 5, summary))
}

// Iter appends what metrics.jsonl has for an iteration.
func (e *Events) Iter(m Iter) error {
	s := []Scalar{{"iter/loss", float64(m.Loss)}, {"lr", float64(m.LR)}, {"grad_norm", float64(m.GradNorm)},
		{"speed/ms_per_iter", float64(m.DtMs)}, {"speed/tokens_per_s", float64(m.TokensPerS)}}
	if m.MFU != 0 {
		s = append(s, Scalar{"speed/mfu", float64(m.MFU)})
	}
	if m.VramProcess != 0 {
		s = append(s, Scalar{"memory/vram_process", float64(m.VramProcess)})
	}
	return e.Write(m.Iter, s...)
}

// Eval appends an estimate, under the names that nanoGPT gives Weights & Biases.
func (e *Events) Eval(m Eval) error {
	return e.Write(m.Iter, Scalar{"train/loss", float64(m.TrainLoss)}, Scalar{"val/loss", float64(m.ValLoss)})
}

// Close syncs and closes.
func (e *Events) Close() error { return errors.Join(e.f.Sync(), e.f.Close()) }

// event begins an Event with its wall time and step.
func (e *Events) event(step int) []byte {
	b := []byte{1<<3 | 1}
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(e.now().UnixMicro())/1e6))
	b = append(b, 2<<3)
	return binary.AppendUvarint(b, uint64(step))
}

// appendBytes appends a length-delimited field.
func appendBytes(b []byte, field byte, value []byte) []byte {
	b = append(b, field<<3|2)
	b = binary.AppendUvarint(b, uint64(len(value)))
	return append(b, value...)
}

func (e *Events) write(message []byte) error {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(message)))
	b = binary.LittleEndian.AppendUint32(b, maskedCRC(b))
	b = append(b, message...)
	b = binary.LittleEndian.AppendUint32(b, maskedCRC(message))
	if _, err := e.f.Write(b); err != nil {
		return fmt.Errorf("tensorboard: %w", err)
	}
	return nil
}

// maskedCRC is TFRecord's: a CRC-32C, rotated and shifted so that a CRC of data that holds CRCs stays good.
func maskedCRC(b []byte) uint32 {
	crc := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	return (crc>>15 | crc<<17) + 0xa282ead8
}
