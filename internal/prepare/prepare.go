// Package prepare turns texts into data sets: train.bin and val.bin, and meta.pkl for characters.
//
// It owns reading (.txt, .jsonl, .parquet, gzip, zstd, folders, standard input), the split, and a journal by which a
// run that was killed goes on. Memory is bounded, all cores encode, and the output is a function of the inputs and
// options alone: not of threads, nor of interruptions. It knows nothing of models.
//
// # The split
//
// Characters, and GPT-2's tokens of one text file, are split by position: the last val_fraction of the characters is
// val, as in nanoGPT's shakespeare_char and shakespeare, whose files it writes to the byte. GPT-2's tokens of several
// documents (rows, lines, files) are split by document, each followed by <|endoftext|> as in nanoGPT's openwebtext:
// a document goes to val by a draw from its number and the seed, and the first always does.
//
// # Text
//
// Text files are read as Python reads them: \r\n and \r become \n. Fields of .jsonl and .parquet files are taken as
// they are. Bytes that are not UTF-8 are kept by GPT-2's tokens and counted; characters refuse them.
package prepare

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/snugml/snug/internal/bpe"
	"github.com/snugml/snug/internal/data"
)

// Tokenizers.
const (
	GPT2 = "gpt2"
	Char = "char"
)

// Options say what to prepare.
type Options struct {
	Inputs      []string // files, folders, or "-" for Stdin
	Out         string   // the data set's folder
	Tokenizer   string   // GPT2 or Char
	Format      Format
	Field       string  // the field or column that holds a document
	ValFraction float64 // 0 is DefaultValFraction's
	Seed        uint64
	Threads     int // 0 is one a core
	Overwrite   bool
	Stdin       io.Reader
	// Report, if not nil, is told of progress: bytes of input files, and tokens so far.
	Report func(stage string, done, total, tokens int64)
	// Note, if not nil, is told what a user should know before the work begins.
	Note func(string)
	// SaveEvery is how often the journal is written; 0 is every five seconds.
	SaveEvery time.Duration

	chunk int // bytes; tests cut smaller than chunkSize
}

// Result is what was made.
type Result struct {
	Out         string   `json:"out"`
	Tokenizer   string   `json:"tokenizer"`
	VocabSize   int      `json:"vocab_size"`
	TrainTokens int64    `json:"train_tokens"`
	ValTokens   int64    `json:"val_tokens"`
	Documents   int64    `json:"documents"`
	Files       int      `json:"files"`
	InputBytes  int64    `json:"input_bytes"`
	Invalid     int64    `json:"invalid_utf8_bytes"`
	ValFraction float64  `json:"val_fraction"`
	SplitBy     string   `json:"split_by"` // position or document
	Resumed     bool     `json:"resumed"`
	Written     []string `json:"written"`
}

// manyDocuments is the size of inputs from which a few documents are enough for val.
const manyDocuments = 1 << 30

// DefaultValFraction is nanoGPT's: 0.1 as in its shakespeare sets; 0.0005, as in its openwebtext, of documents that
// are 1 GiB or more on disk.
func DefaultValFraction(byPosition bool, inputBytes int64) float64 {
	if byPosition || inputBytes < manyDocuments {
		return 0.1
	}
	return 0.0005
}

// ErrStopped is returned when the context ended the run: the same command goes on.
var ErrStopped = errors.New("stopped")

// run is one preparation.
type run struct {
	options Options
	job     job
	journal *journal
	total   int64 // bytes of all input files
	read    atomic.Int64
	resumed bool
}

// Run prepares a data set.
func Run(ctx context.Context, o Options) (*Result, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	o.fill()
	ignoreFileSizeSignal()
	j, err := openJournal(o.Out)
	if err != nil {
		return nil, err
	}
	defer j.close()
	r := &run{options: o, journal: j}
	if err := r.plan(ctx); err != nil {
		return nil, err
	}
	if err := r.work(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, ErrStopped
		}
		return nil, err
	}
	return r.finish()
}

// Check refuses options that no input could make good.
func (o *Options) Check() error {
	switch {
	case len(o.Inputs) == 0:
		return errors.New("prepare: no input: name files, folders, or - for standard input")
	case o.Out == "":
		return errors.New("prepare: no --out: name the data set's folder")
	case o.Tokenizer != GPT2 && o.Tokenizer != Char:
		return fmt.Errorf("prepare: --tokenizer=%s: use gpt2 or char", o.Tokenizer)
	case !(o.ValFraction >= 0 && o.ValFraction < 1):
		return fmt.Errorf("prepare: --val_fraction=%v: want above 0 and below 1", o.ValFraction)
	case o.Format != Auto && o.Format != Text && o.Format != JSONL && o.Format != Parquet:
		return fmt.Errorf("prepare: --format=%s: use auto, text, jsonl or parquet", o.Format)
	}
	return nil
}

// fill sets what was left open.
func (o *Options) fill() {
	if o.Threads <= 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	if o.chunk == 0 {
		o.chunk = chunkSize
	}
	if o.SaveEvery == 0 {
		o.SaveEvery = 5 * time.Second
	}
	if o.Report == nil {
		o.Report = func(string, int64, int64, int64) {}
	}
	if o.Note == nil {
		o.Note = func(string) {}
	}
}

// plan finds the inputs, decides the split, and opens or starts the journal.
func (r *run) plan(ctx context.Context) error {
	o := &r.options
	inputs := append([]string(nil), o.Inputs...)
	for i, name := range inputs {
		if name != "-" {
			continue
		}
		inputs[i] = filepath.Join(r.journal.dir, "stdin")
		if err := r.spool(ctx, inputs[i]); err != nil {
			return err
		}
	}
	sources, err := expand(inputs, o.Format)
	if err != nil {
		return err
	}
	for _, s := range sources {
		r.total += s.Size
	}
	byPosition := o.Tokenizer == Char || len(sources) == 1 && sources[0].Format == Text
	fraction := o.ValFraction
	if fraction == 0 {
		fraction = DefaultValFraction(byPosition, r.total)
	}
	r.job = job{Version: journalVersion, Tokenizer: o.Tokenizer, Field: o.Field, ValFraction: fraction, Seed: o.Seed,
		ByPosition: byPosition, Sources: sources}
	r.resumed, err = r.journal.begin(r.job, o.Overwrite, o.Note)
	return err
}

// spool keeps standard input in the work folder, because the split by position reads twice.
func (r *run) spool(ctx context.Context, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, reason(err))
	}
	defer f.Close()
	buf := make([]byte, chunkSize)
	for total := int64(0); ; {
		if ctx.Err() != nil {
			return ErrStopped
		}
		n, err := r.options.Stdin.Read(buf)
		if _, err := f.Write(buf[:n]); err != nil {
			return fmt.Errorf("write %s: %w", path, reason(err))
		}
		total += int64(n)
		r.options.Report("reading standard input", total, 0, 0)
		if err == io.EOF {
			return f.Close()
		}
		if err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
	}
}

// work counts where the split or the vocabulary needs it, then encodes.
func (r *run) work(ctx context.Context) error {
	s := &r.journal.state
	if s.Complete {
		return nil
	}
	if r.job.ByPosition && !s.Counted {
		if err := r.count(ctx); err != nil {
			return err
		}
	}
	return r.encode(ctx)
}

// count is the first of two passes: how many characters there are, and which.
func (r *run) count(ctx context.Context) error {
	s := &r.journal.state
	var sets []*charSet
	in := &reader{sources: r.job.Sources, cut: cutAnywhere, splitAt: -1}
	err := r.pass(ctx, in, func() func(*chunk) error {
		set := new(charSet)
		sets = append(sets, set)
		return r.tally(set)
	}, func(c *chunk) error {
		s.Chars += c.chars
		r.options.Report("counting", r.read.Load(), r.total, 0)
		return nil
	})
	if err != nil {
		return err
	}
	var chars strings.Builder
	n := 0
	for char := rune(0); r.job.Tokenizer == Char && int(char) < 64*len(charSet{}); char++ {
		for _, set := range sets {
			if set.has(char) {
				chars.WriteRune(char)
				n++
				break
			}
		}
	}
	if n > 1<<16 {
		return fmt.Errorf("prepare: %d different characters, at most %d fit two bytes: use --tokenizer=gpt2", n, 1<<16)
	}
	if s.Chars < 2 {
		return fmt.Errorf("prepare: %d characters of text, train and val need one each", s.Chars)
	}
	s.Charset, s.Counted = chars.String(), true
	return r.journal.save()
}

// trainChars is where val begins, as nanoGPT computes it: int(n*0.9).
func (r *run) trainChars() int64 {
	return int64(float64(r.journal.state.Chars) * (1 - r.job.ValFraction))
}

// encode writes the token files, from where the journal stands.
func (r *run) encode(ctx context.Context) error {
	s := &r.journal.state
	in := &reader{sources: r.job.Sources, cut: cutAnywhere, splitAt: -1, pos: s.Position}
	worker := func() func(*chunk) error { return r.characters([]rune(s.Charset)) }
	if r.job.Tokenizer == GPT2 {
		in.cut, worker = bpe.GPT2().Cut, r.gpt2
		if r.job.ByPosition {
			in.splitAt = r.trainChars()
		}
	}
	saved := time.Now()
	err := r.pass(ctx, in, worker, func(c *chunk) error {
		if err := r.take(c); err != nil {
			return err
		}
		r.options.Report("encoding", r.read.Load(), r.total, (s.Bytes[train]+s.Bytes[val])/2)
		if time.Since(saved) < r.options.SaveEvery {
			return nil
		}
		err := r.journal.checkpoint()
		saved = time.Now()
		return err
	})
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), r.journal.checkpoint())
	}
	return err
}

// take writes a chunk's tokens.
func (r *run) take(c *chunk) error {
	s := &r.journal.state
	if r.job.Tokenizer == Char { // a token is a character, so val begins at a token
		left := max(0, 2*r.trainChars()-s.Bytes[train])
		n := min(left, int64(len(c.tokens[train])))
		c.tokens[train], c.tokens[val] = c.tokens[train][:n], c.tokens[train][n:]
	}
	for split := range c.tokens {
		if err := r.journal.write(split, c.tokens[split]); err != nil {
			return err
		}
	}
	s.Position, s.Documents = c.after, c.after.Document
	s.Invalid += c.invalid
	return nil
}

// pass reads the inputs, works on the chunks by all threads, and gives them to sink in order.
func (r *run) pass(ctx context.Context, in *reader, newWorker func() func(*chunk) error, sink func(*chunk) error) error {
	group, ctx := errgroup.WithContext(ctx)
	jobs := make(chan *chunk)
	order := make(chan *chunk, 2*r.options.Threads)
	chunks := sync.Pool{New: func() any { return &chunk{done: make(chan error, 1)} }}
	in.read, in.field, in.chunk = &r.read, r.job.Field, r.options.chunk
	in.fresh = func() *chunk { return chunks.Get().(*chunk) }
	in.emit = func(c *chunk) error {
		for _, ch := range []chan *chunk{order, jobs} {
			select {
			case ch <- c:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	group.Go(func() error {
		defer close(order)
		defer close(jobs)
		return in.run(ctx)
	})
	for range r.options.Threads {
		work := newWorker()
		group.Go(func() error {
			for c := range jobs {
				c.tokens[train], c.tokens[val], c.invalid = c.tokens[train][:0], c.tokens[val][:0], 0
				c.done <- work(c)
			}
			return nil
		})
	}
	group.Go(func() error {
		for c := range order {
			select {
			case err := <-c.done:
				if err != nil {
					return fmt.Errorf("read %s: %w", c.source.Path, err)
				}
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := sink(c); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			chunks.Put(c)
		}
		return nil
	})
	return group.Wait()
}

// finish checks what was made and puts it in place.
func (r *run) finish() (*Result, error) {
	s := &r.journal.state
	if !s.Complete {
		if err := changed(r.job.Sources); err != nil {
			return nil, err
		}
		for split, name := range splitNames {
			if s.Bytes[split] == 0 {
				os.Remove(r.journal.statePath())
				return nil, fmt.Errorf("prepare: %s.bin would be empty: %d documents, val_fraction %v: give more text, or another --val_fraction",
					name, s.Documents, r.job.ValFraction)
			}
		}
		s.Complete = true
		if err := r.journal.checkpoint(); err != nil {
			return nil, err
		}
	}
	res := &Result{Out: r.options.Out, Tokenizer: r.job.Tokenizer, VocabSize: bpe.VocabSize, TrainTokens: s.Bytes[train] / 2,
		ValTokens: s.Bytes[val] / 2, Documents: s.Documents, Files: len(r.job.Sources), InputBytes: r.total, Invalid: s.Invalid,
		ValFraction: r.job.ValFraction, SplitBy: "document", Resumed: r.resumed, Written: []string{r.journal.final(train), r.journal.final(val)}}
	if r.job.ByPosition {
		res.SplitBy = "position"
	}
	var meta []byte
	if r.job.Tokenizer == Char {
		chars := strings.Split(s.Charset, "")
		m := data.Meta{VocabSize: len(chars), Chars: data.NewChars(chars)}
		var err error
		if meta, err = m.Write(); err != nil {
			return nil, err
		}
		res.VocabSize = len(chars)
		res.Written = append(res.Written, filepath.Join(r.options.Out, "meta.pkl"))
	}
	return res, r.journal.install(meta)
}
