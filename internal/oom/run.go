package oom

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/units"
)

// Run is what a log says of the run before it failed.
type Run struct {
	Trainer    string            // nanogpt, huggingface, lightning, "" when the log does not tell
	Settings   map[string]string // settings as the log prints them, values as Python prints them
	ConfigFile string            // the config file nanoGPT says it read
	File       []string          // its assignments, which nanoGPT prints whole
	Command    string            // the command line, where the log echoes it
	Tokens     int64             // "tokens per iteration will be"
	Parameters int64             // parameters of the model; 123.59M prints as 123,590,000
	Compiled   bool              // "compiling the model"
	SlowAttn   bool              // nanoGPT's warning that flash attention is missing
	OldScaler  bool              // the warning that torch.cuda.amp.GradScaler is deprecated
	FewSMs     bool              // inductor's "Not enough SMs to use max_autotune_gemm mode"
	AllocConf  string            // PYTORCH_CUDA_ALLOC_CONF as set on the command line, not as advised
	Torch      string            // version
	GPUName    string
	Ranks      int    // processes, where the log shows more than one
	Told       Told   // what the one who reports it says
	Title      string // the log's first line, where people write what it is about
	Script     string // the first script on a command line
	optimizing bool
	Progress   Progress
}

// Progress is how far the run had come.
type Progress struct {
	Steps    int64   // steps that went well: iteration lines, or the count in the last progress bar
	StepTime float64 // seconds an iteration, from the last line that says
	Bar      Phase   // what the last progress bar was of, where it names it and had not reached its end; Forward is training
	Nameless bool    // the last progress bar was under way, and says not of what
	Loaded   bool    // the last progress bar was of a model that was loaded in full
	Status   Phase   // what the program said last that it was doing
	Memory   []units.Bytes
	memories int64
}

// Rising reports whether the printed memory use grew all the way, as a leak does: by a fifth, or a little with every line.
func (p Progress) Rising() bool {
	m := p.Memory
	if len(m) < 4 || m[0] == 0 || !slices.IsSorted(m) {
		return false
	}
	grown := float64(m[len(m)-1]) / float64(m[0])
	return grown >= 1.2 || grown >= 1.01 && len(m) >= 8 && len(slices.Compact(slices.Clone(m))) == len(m)
}

// note is a line that tells something of the run: the literal that marks it, and what to do with its groups.
type note struct {
	anchor string
	expr   string
	take   func(r *Run, m []string)
	starts bool // only a run's first lines hold it: after a failure, another run begins
}

// set keeps the first group as a setting's value.
func set(key string) func(*Run, []string) {
	return func(r *Run, m []string) { r.Settings[key] = strings.ReplaceAll(m[1], ",", "") }
}

func flag(get func(*Run) *bool) func(*Run, []string) {
	return func(r *Run, _ []string) { *get(r) = true }
}

// state is what a program says that it was doing.
func state(p Phase) func(*Run, []string) { return func(r *Run, _ []string) { r.Progress.Status = p } }

// smiExpr is a card's row in nvidia-smi's table.
const smiExpr = `\|\s+\d+\s+((?:NVIDIA |GeForce |Tesla |Quadro )[\w -]+?)\s+(?:On|Off|WDDM|TCC)\b`

func smiName(r *Run, m []string) { r.GPUName = strings.TrimSpace(m[1]) }

// notes are what trainers print of their configuration, and what reporters say beside it. A new line to understand is a new entry.
var notes = slices.Concat(printed, remarked())

var printed = []note{
	{"overriding: ", `Overriding: (\w+) = (.+)`, func(r *Run, m []string) { r.Trainer = "nanogpt"; r.Settings[m[1]] = strings.TrimSpace(m[2]) }, true},
	{"overriding config with ", `Overriding config with ([^\s:]+)`, func(r *Run, m []string) { r.Trainer = "nanogpt"; r.ConfigFile = m[1] }, true},
	{"tokens per iteration will be", `tokens per iteration will be:? ([\d,]+)`, func(r *Run, m []string) {
		r.Trainer = "nanogpt"
		r.Tokens, _ = strconv.ParseInt(strings.ReplaceAll(m[1], ",", ""), 10, 64)
	}, true},
	{"number of parameters", `number of parameters:? ([\d.]+)M`, func(r *Run, m []string) {
		if n, err := strconv.ParseFloat(m[1], 64); err == nil && n < 1e7 {
			r.Parameters = int64(n*1e6 + 0.5)
		}
	}, false},
	{"parameters = ", `(?:trainable|model) parameters = ([\d,]+)`, func(r *Run, m []string) {
		r.Parameters, _ = strconv.ParseInt(strings.ReplaceAll(m[1], ",", ""), 10, 64)
	}, false},
	{"defaulting to vocab_size", `defaulting to vocab_size of GPT-2 to (\d+)`, set("vocab_size"), false},
	{"found vocab_size", `found vocab_size = (\d+)`, set("vocab_size"), false},
	{"initializing a new model", `Initializing a new model from scratch`, func(r *Run, _ []string) { r.Settings["init_from"] = "scratch" }, false},
	{"resuming training from", `Resuming training from (\S+)`, func(r *Run, m []string) { r.Settings["init_from"] = "resume"; r.Settings["out_dir"] = m[1] }, false},
	{"initializing from openai", `Initializing from OpenAI GPT-2 weights: (\S+)`, set("init_from"), false},
	{"using fused adamw", `using fused AdamW`, flag(func(r *Run) *bool { return &r.optimizing }), false},
	{"compiling the model", `compiling the model`, flag(func(r *Run) *bool { return &r.Compiled }), false},
	{"using slow attention", `using slow attention`, flag(func(r *Run) *bool { return &r.SlowAttn }), false},
	{"cuda.amp.gradscaler", `GradScaler\(args\.*\)\W+is deprecated`, flag(func(r *Run) *bool { return &r.OldScaler }), false},
	{"not enough sms", `Not enough SMs to use max_autotune_gemm`, flag(func(r *Run) *bool { return &r.FewSMs }), false},
	{"running training *****", `Running training \*`, func(r *Run, _ []string) { r.Trainer = "huggingface" }, false},
	{"batch size per device", `(?i)batch size per device\s*=\s*(\d+)`, set("batch_size"), false},
	{"gradient accumulation steps", `(?i)gradient accumulation steps\s*=\s*(\d+)`, set("gradient_accumulation_steps"), false},
	{"trainable params", `\| ?[Tt]rainable params|Trainable params`, func(r *Run, _ []string) {
		if r.Trainer == "" {
			r.Trainer = "lightning"
		}
	}, false},
	{"expandable_segments", `(?:export |\$ ?|^\s*|set |env )(PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF=['"]?)([\w:,.]+)`, func(r *Run, m []string) { r.AllocConf = m[2] }, false},
	{"expandable_segments", `environ\[['"]PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF['"]\]\s*=\s*['"]([\w:,.]+)`, func(r *Run, m []string) { r.AllocConf = m[1] }, false},
	{"max_split_size_mb:", `PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF=['"]?([\w:,.]+)`, func(r *Run, m []string) { r.AllocConf = m[1] }, false},
	{"torch", `(?i)(?:py)?torch(?: version)?\s*(?:==|:|-|=|\s)\s*v?([012]\.\d+(?:\.\d+)?(?:[a-z]\w*|\+\w+)?)`, func(r *Run, m []string) { r.Torch = m[1] }, false},
	{"gpu 0: ", `GPU 0: ((?:NVIDIA|GeForce|Tesla|Quadro|AMD)[\w \-/.]+)`, func(r *Run, m []string) { r.GPUName = strings.TrimSpace(m[1]) }, false},
	{"geforce", smiExpr, smiName, false}, {"tesla", smiExpr, smiName, false}, {"nvidia a", smiExpr, smiName, false}, {"nvidia h", smiExpr, smiName, false},
	{"cuda:0 (", `CUDA:0 \(([^,)]+)`, func(r *Run, m []string) { r.GPUName = m[1] }, false},
	{"train loss ", `step \d+: train loss`, func(r *Run, _ []string) { r.Trainer = "nanogpt" }, false},
	{"model failed to load", `(?m)^\s*Stable diffusion model failed to load`, state(Load), false},
	{"failed to load model", `failed to load model`, state(Load), false},
	{"see_memory_usage", `(?i)\b(?:before|after) (?:creat|initializ)\w+ (?:\w+ )?(?:partition|optimizer)`, state(Init), false}, {"kv_cache_init", `kv_cache_init`, state(Init), false}, {"failed to create", `failed to create (?:llama_)?context`, state(Init), false}, {"gallocr_reserve", `gallocr_reserve`, state(Init), false},
	{"failed to clone() tensor", `Failed to clone\(\) tensor with name`, state(Save), false}, {"skipping token", `Skipping token \S+ with 1-dimensional vector`, state(Data), false},
	{"xrtcompile", `\bXRTCompile\b`, state(Compile), false}, {"building engine", `(?i)\bbuilding engine\b`, state(Compile), false}, {"skipping tactic", `Skipping tactic`, state(Compile), false},
	{"tracerwarning", `TracerWarning`, state(Compile), false},
	{"processing method", `processing method (\w+)`, func(r *Run, m []string) {
		if s := (Traceback{{Func: m[1]}}).sight(); s.doing != "" {
			r.Progress.Status = s.doing
		}
	}, false},
	{`"post /`, `"POST /(?:v1|api|generate|predict|sdapi|infer|chat|completion|transcri)\S* HTTP`, state(Sample), false}, {"running on local url", `Running on local URL`, state(Sample), false},
	{"loglikelihood", `(?i)running loglikelihood`, state(Eval), false},
	{"node type:", `Node Type:\W*(?:\w+Loader\w*)`, state(Load), false}, {"node type:", `Node Type:\W*(?:KSampler|VAE(?:De|En)code|SamplerCustom)\w*`, state(Sample), false},
	{"got prompt", `(?m)^\W*got prompt`, state(Sample), false}, {"error completing request", `Error completing request`, state(Sample), false},
	{"output generated in", `Output generated in`, state(Sample), false},
	{"pytorch_cuda_alloc_conf", `avoid fragmentation\.|See documentation for Memory Management and PYTORCH`, func(r *Run, _ []string) { r.Told.Memory = true }, false}, // the end of a message whose beginning was cut
	{"-m ", `(?:python[\d.]*)\s+-m\s+([\w.]+)`, func(r *Run, m []string) {
		if !strings.HasPrefix(m[1], "torch.distributed") { // which starts another
			r.Script = cmp.Or(r.Script, strings.ReplaceAll(m[1], ".", "/"))
		}
	}, false},
	{"$ ", `^\s*\$ ([\w-]+ [\w./-]+)`, func(r *Run, m []string) {
		if !strings.HasPrefix(m[1], "python") {
			r.Script = cmp.Or(r.Script, m[1])
		}
	}, false},
	{".py", `(?m)(?:python[\d.]*|torchrun|launch|deepspeed)\b[^\n]*?\s(\S+\.py)\b`, func(r *Run, m []string) { r.Script = cmp.Or(r.Script, m[1]) }, false},
	{".sh", `(?m)(?:\b(?:ba|z)?sh\s+|\bsource\s+|(?:^|[\s\x60$])\./)(\S+\.sh)\b`, func(r *Run, m []string) { r.Script = cmp.Or(r.Script, m[1]) }, false},
	{"train.py ", `(?m)(?:python[\d.]*|torchrun|accelerate launch|deepspeed)\b[^\n]*?\S*train\S*\.py( [^\n]*)?$`, func(r *Run, m []string) { r.command(m[0], m[1]) }, false},
}

// overrideExpr is a setting on a command line, as nanoGPT writes it (--key=value) or as argparse does (--key value).
var overrideExpr = lazy(`--([A-Za-z]\w*)(?:=|\s+)("[^"]*"|'[^']*'|[^\s-][^\s]*)`)

// processesExpr is torchrun's number of processes on a machine.
var processesExpr = lazy(`--nproc[_-]per[_-]node[= ](\d{1,5})`)

// command keeps an echoed command line and the settings on it; what the program printed itself stands above it.
func (r *Run) command(line, args string) {
	const longest = 2000
	if r.Command != "" || len(line) > longest {
		return
	}
	r.Command = strings.TrimSpace(line)
	if m := processesExpr().FindStringSubmatch(line); m != nil {
		if n := number(m[1]); n != nil && *n <= 1<<16 {
			r.Ranks = max(r.Ranks, *n)
		}
	}
	known := strings.Contains(line, " train.py ")
	for _, m := range overrideExpr().FindAllStringSubmatch(args, 64) {
		if _, seen := r.Settings[m[1]]; !seen {
			r.Settings[m[1]] = strings.Trim(m[2], `"'`)
		}
		row, ok := config.Lookup(m[1])
		known = known && ok && row.Commands&config.Train != 0
	}
	for _, word := range strings.Fields(args) {
		if strings.HasSuffix(word, ".py") && !strings.HasPrefix(word, "--") && r.ConfigFile == "" {
			r.ConfigFile = word
		}
	}
	if known && r.Trainer == "" && strings.Contains(args, "--") {
		r.Trainer = "nanogpt" // train.py, and every key is nanoGPT's
	}
}

// assignExpr is a line of a config file, which nanoGPT prints whole when it reads one.
var assignExpr = lazy(`^([a-z]\w*)\s*=\s*([^#=\n][^#\n]*?)\s*(?:#.*)?$`)

// assign reads one line of the printed config file.
func (r *Run) assign(line string) {
	if m := assignExpr().FindStringSubmatch(strings.TrimSpace(line)); m != nil && len(r.File) < 256 {
		r.File = append(r.File, m[1]+" = "+m[2])
	}
}

// Setting is a setting's text: as printed, or else as the config file has it.
func (r *Run) Setting(key string) string {
	if v, ok := r.Settings[key]; ok {
		return v
	}
	for i := len(r.File) - 1; i >= 0; i-- {
		if k, v, _ := strings.Cut(r.File[i], " = "); k == key {
			return v
		}
	}
	return ""
}

// Config is the run's settings where the log shows them: nanoGPT's defaults, then the config file it printed, then
// its overrides. Nil when the log is not nanoGPT's, or names a file whose contents it does not show.
func (r *Run) Config() *config.Config {
	if r.Trainer != "nanogpt" || r.ConfigFile != "" && len(r.File) == 0 {
		return nil
	}
	cfg := config.Default()
	r.Apply(&cfg)
	return &cfg
}

// Apply puts what the log says of the settings into cfg. A key or a value that config does not know is passed over:
// it belongs to a changed train.py.
func (r *Run) Apply(cfg *config.Config) {
	for _, line := range r.File {
		if key, _, _ := strings.Cut(line, " = "); known(key) {
			_ = cfg.Load("the log's config", []byte(line))
		}
	}
	for key, text := range r.Settings {
		if known(key) {
			_ = cfg.SetLiteral(key, text)
		}
	}
	if r.Trainer == "nanogpt" && !r.Compiled && r.Setting("compile") == "" && r.optimizing {
		cfg.Compile = false // the optimizer was made, and no word of compiling followed
	}
}

func known(key string) bool {
	_, ok := config.Lookup(key)
	return ok
}
