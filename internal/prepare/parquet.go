package prepare

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/parquet-go/parquet-go"
)

// parquet reads a file of which each row is a document: the text of one column.
func (r *reader) parquet(src source) (err error) {
	defer func() { // the library may panic on a damaged file
		if p := recover(); p != nil {
			err = fmt.Errorf("the Parquet file is damaged: %v", p)
		}
	}()
	f, err := os.Open(src.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	file, err := parquet.OpenFile(f, src.Size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return fmt.Errorf("not a Parquet file: %w", err)
	}
	column, err := textColumn(file.Schema(), r.field)
	if err != nil {
		return err
	}
	before, rows := r.read.Load(), int64(0)
	b := &batch{reader: r, at: r.pos}
	for _, group := range file.RowGroups() {
		n := group.NumRows()
		if skip := b.at.Offset - rows; skip < n {
			if err := b.group(group.ColumnChunks()[column], max(0, skip)); err != nil {
				return err
			}
		}
		rows += n
		r.read.Store(before + int64(float64(src.Size)*float64(rows)/float64(max(1, file.NumRows()))))
	}
	return b.flush()
}

// textColumn finds the column of that name and checks that it is text, one value a row.
func textColumn(schema *parquet.Schema, name string) (int, error) {
	leaf, ok := schema.Lookup(name)
	if !ok {
		var names []string
		for _, path := range schema.Columns() {
			names = append(names, strings.Join(path, "."))
		}
		return 0, fmt.Errorf("no column %q: it has %s: use --field=…", name, strings.Join(names, ", "))
	}
	if leaf.MaxRepetitionLevel > 0 || leaf.Node.Type().Kind() != parquet.ByteArray {
		return 0, fmt.Errorf("column %q is %s, want one text a row", name, leaf.Node.Type())
	}
	return leaf.ColumnIndex, nil
}

// batch gathers rows into chunks.
type batch struct {
	reader *reader
	at     position // after the rows gathered
	data   []byte
	rows   []int
}

// group reads one column of a row group, from row skip on. A row without a value is an empty document.
func (b *batch) group(column parquet.ColumnChunk, skip int64) error {
	pages := column.Pages()
	defer pages.Close()
	if err := pages.SeekToRow(skip); err != nil {
		return err
	}
	values := make([]parquet.Value, 256)
	for {
		page, err := pages.ReadPage()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := b.page(page, values); err != nil {
			return err
		}
		parquet.Release(page)
	}
}

func (b *batch) page(page parquet.Page, values []parquet.Value) error {
	in := page.Values()
	for {
		n, err := in.ReadValues(values)
		for _, v := range values[:n] {
			if !v.IsNull() {
				b.data = append(b.data, v.ByteArray()...)
			}
			b.rows = append(b.rows, len(b.data))
			b.at.Offset++
			b.at.Document++
			if len(b.data) >= b.reader.chunk {
				if err := b.flush(); err != nil {
					return err
				}
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// flush hands the gathered rows on.
func (b *batch) flush() error {
	if len(b.rows) == 0 {
		return nil
	}
	err := b.reader.send(b.data, b.at, func(c *chunk) { c.rows = append(c.rows, b.rows...) })
	b.data, b.rows = b.data[:0], b.rows[:0]
	return err
}
