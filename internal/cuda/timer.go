package cuda

import "github.com/snugml/snug/internal/program"

// stopwatch times every op of the sections that run while it is set, by events around it.
type stopwatch struct {
	marks []mark
	pool  []uintptr
	err   error
}

type mark struct {
	op         *program.Op
	start, end uintptr
}

// OpTime is how long one op took on the device.
type OpTime struct {
	Op *program.Op
	Ms float64
}

// Time sets a timer, runs f, waits, and returns every op's time in order.
func (d *Device) Time(f func() error) ([]OpTime, error) {
	t := &stopwatch{}
	if err := d.on(func() error { d.timer = t; return nil }); err != nil {
		return nil, err
	}
	err := f()
	var times []OpTime
	read := d.on(func() error {
		d.timer = nil
		if err := d.drv.synchronize(d.stream); err != nil {
			return err
		}
		for _, m := range t.marks {
			ms, err := d.drv.elapsed(m.start, m.end)
			if err != nil {
				return err
			}
			times = append(times, OpTime{m.op, ms})
		}
		for _, e := range t.pool {
			if err := d.drv.do(cuEventDestroy, e); err != nil {
				return err
			}
		}
		return t.err
	})
	if err == nil {
		err = read
	}
	return times, err
}

func (t *stopwatch) event(d *Device) uintptr {
	e, err := d.drv.newEvent()
	if err == nil {
		t.pool = append(t.pool, e)
		err = d.drv.record(e, d.stream)
	}
	if err != nil && t.err == nil {
		t.err = err
	}
	return e
}

func (t *stopwatch) begin(d *Device, op *program.Op) {
	if t != nil {
		t.marks = append(t.marks, mark{op: op, start: t.event(d)})
	}
}

func (t *stopwatch) end(d *Device) {
	if t != nil {
		t.marks[len(t.marks)-1].end = t.event(d)
	}
}
