package oom

import (
	"cmp"
	"math/bits"
	"strconv"
	"strings"

	"github.com/snugml/snug/internal/units"
)

// Progress lines come by the million, so they are counted, and only a few are read: the first ones, then every
// one whose count is a power of two, and the last.

var (
	iterExpr = lazy(`\biter (\d+): loss [^,]+, time:? ([\d.]+) ?ms`)
	barExpr  = lazy(`(\d+)/(\d+) \[[\d:]+<[\d:?]+, *([\d.]+)?(s/it|it/s)?`)
	// labelExpr is a bar under way and the name before it; taskExpr is mmcv's and YOLO's, which only evaluation draws, and rowExpr
	// YOLO's of training.
	labelExpr    = lazy(`^[\s|]*[^%|]{0,80}?\b(?:\d{1,2}%|0it \[)`)
	namelessExpr = lazy(`(?:^|[\s,])\d{1,2}%\|[^|]*\| *\d+/\d+ \[`)
	fullExpr     = lazy(`(?i)^[^%|]{0,20}\bloading [^%|]{0,60}\b100%`)
	taskExpr     = lazy(`\[>* +\] \d+/\d+, (?:[\d.]+ task/s|elapsed: 0s)|\bmAP\S*\s*:\s*\d{1,2}%`)
	rowExpr      = lazy(`^\s*\d+/\d+\s+[\d.]+G\s`)
	// statusExpr is a line that begins with what the program is about to do, or an epoch's.
	statusExpr = lazy(`(?i)` + either(
		`^[\s*#=>]*(?:\d+: )?(?:[*=-]+ )?((?:evaluating|compiling|validating|loading|generating|sampling|testing|training|decoding|capturing|exporting|saving|initializing|transcribing|predicting|upscaling|rendering|denoising|restoring|merging|moving|(?:building|creating) (?:the )?model|processing (?:image|video|frame|audio|page|prompt)|(?:running|starting|start|begin|performing|doing|computing|calculating) (?:the )?(?:metrics? on the )?(?:valid|eval|infer|predict|test|train))\w*\b[^\n%|]{0,160})$`,
		`\b(capturing )[^\n]{0,40}graphs?\b`,
		`^\W*((?:eval|val|test|train)\w*)\b[^\n]{0,30}\d+/\d+`,
		`^\W*\[((?:eval|val|test|train)\w*)\]`,
		`^[^\n]{0,30}?\b(epoch)\W{0,3}\d+\W{0,3}([a-z]*)`,
		`\b(epoch\((?:train|val|test)\))`,
		`(?:\b|_)(?:iter(?:ation)?|step|batch)\W{0,4}\d+[^\n]{0,60}\b((?:\w+[ _])?loss)`,
		`\b(?:exception|error) (?:during|while|in) ((?:train|valid|eval|infer|predict|generat)\w*):`,
		`\b(error loading model)`,
		`Error recorded from (\w+_loop)`,
		`\b(\w+_loop) marked as finished`,
	))
	dictExpr   = lazy(`\{'loss': '?[\d.naif]+'?, .*'epoch': '?[\d.]+`)
	memoryExpr = lazy(`(?i)\b(max_mem|memory|mem|mem_usage\S*?|gpu[_ ]?mem(?:ory)?|memory[_ ](?:usage|allocated|reserved|used)|cuda[_ ]mem(?:ory)?)\s*[:=]\s*(\d+(?:\.\d+)?)\s*([KMG]i?B?)?\b`)
)

// due reports whether the nth line of its kind is read.
func due(n int64) bool { return n <= 64 || bits.OnesCount64(uint64(n)) == 1 }

// iteration takes a nanoGPT iteration line.
func (p *Progress) iteration(line string) {
	if m := iterExpr().FindStringSubmatch(line); m != nil {
		if n, err := strconv.ParseInt(m[1], 10, 64); err == nil {
			p.Steps = max(p.Steps, n+1)
		}
		if ms, err := strconv.ParseFloat(m[2], 64); err == nil && ms > 0 {
			p.StepTime = ms / 1e3
		}
	}
}

// sight is what the progress shows.
func (p *Progress) sight() sight {
	for _, phase := range []Phase{p.Bar, p.Status} {
		switch phase {
		case Forward, Eval, Sample:
			return sight{purpose: phase}
		case "":
		default:
			return sight{doing: phase}
		}
	}
	return sight{}
}

// status takes a line that may say what is going on.
func (p *Progress) status(line string) {
	line = strings.TrimRight(line, " .\t\r")
	if m := statusExpr().FindStringSubmatch(line); m != nil && !personExpr().MatchString(line) {
		phase := activity(read(pathExpr().ReplaceAllString(strings.Join(m[1:], " "), "")))
		if s := phrased(m[1]); s != (sight{}) {
			phase = cmp.Or(s.doing, s.purpose)
		}
		switch {
		case phase == Forward && strings.Contains(line, "100%|"): // so is that, and what came next is open
		case phase == Eval && strings.Contains(line, "100%|"):
			p.Status = "" // that is over
		case phase != "":
			p.Status = phase
		}
	}
}

// personExpr is somebody who speaks: no program does.
var personExpr = lazy(`\b(?:I|I'm|[Mm]y|[Ww]e|[Oo]ur)\b`)

// announcingExpr is what a program says it was doing when it prints a failure.
var announcingExpr = lazy(`(?i)\b(?:exception|error) (?:during|while|in) ((?:train|valid|eval|infer|predict|generat)\w*):|\berror (?:while )?(?:processing|handling|answering|serving) (?:\w+ ){0,2}(prompt|request|query|question)`)

// announcing is what a message says so of itself.
func announcing(message string) sight {
	var p Progress
	if m := announcingExpr().FindStringSubmatch(message); m != nil {
		p.Status = activity(read(m[1]))
		if m[2] != "" {
			p.Status = Sample
		}
	}
	return p.sight()
}

// barPhase is what a progress bar is of, "" where it does not say or is full.
func barPhase(line string) Phase {
	if taskExpr().MatchString(line) {
		return Eval
	}
	if rowExpr().MatchString(line) {
		return Forward
	}
	label := labelExpr().FindString(line)
	if feedingExpr().MatchString(label) {
		return Data
	}
	n := read(label)
	if scoreExpr().MatchString(label) && !n.has(kTrain|kEpoch|kLoss) {
		return Eval
	}
	if n.any(asked) && !n.has(kEval) || showingExpr().MatchString(label) {
		return Sample
	}
	return activity(n)
}

// scoreExpr is a score in a bar's name: what evaluation computes.
var scoreExpr = lazy(`(?i)\b(?:psnr|ssim|lpips|m?iou|map|bleu|rouge|wer|cer|fid|auc|f1)\b\W{0,3}\d`)

// showingExpr is the name of a bar that counts what was made for its own sake.
var showingExpr = lazy(`(?i)\b(?:extracting|embedding|segmenting|rendering|upscaling|interpolating|captioning|recogni[sz]ing|diari[sz]ing|vectori[sz]ing)\b`)

// feedingExpr is the name of a bar that counts what a model will be fed with.
var feedingExpr = lazy(`(?i)\b(?:caching|scanning|tokeniz\w+|pre-?process\w*|packing|(?:loading|reading|building|creating|processing|preparing) (?:the )?(?:\w+ )?(?:data(?:set)?s?|images?|annotations?|examples|records|features|corpus)|generating \w+ (?:split|examples)|saving the dataset|converting format|grouping texts|map|filter)\b`)

// activity is what a label or a status line says is going on.
func activity(n ident) Phase {
	switch {
	case n.has(kLoad) && !n.has(kData|kDataset) && (n.has(kFile|kModel|kPerhaps) || !n.has(kThing|kOne|kEval|kTrain|kSample)):
		return Load
	case n.first(kWarm|kSample|kEval) == kWarm && !n.has(kTrain|kEpoch):
		return Init
	case n.shows():
		return Sample
	case n.has(kEval):
		return Eval
	case n.has(kTrain | kEpoch | kLoss), n.alone(kStep):
		return Forward
	case n.has(kSample | kServe):
		return Sample
	case n.has(kBuild|kMake) && n.has(kModel):
		return Init
	case n.has(kRestore) && n.has(kFile|kModel):
		return Load
	case n.any(shown) && n.has(kOne):
		return Sample
	case n.has(kCompile), n.has(kExport) && n.has(kTarget):
		return Compile
	}
	return ""
}

// shown is the work on one thing after another.
var shown = strings.Fields("processing")

// asked is what only those count who answer it.
var asked = strings.Fields("prompt request query question answer")

// bar takes a tqdm progress bar, loading bars excepted.
func (p *Progress) bar(line string) {
	if strings.Contains(line, "shards") || strings.Contains(line, "ownload") || strings.Contains(line, "Map:") {
		return
	}
	m := barExpr().FindStringSubmatch(line)
	if m == nil {
		return
	}
	if n, err := strconv.ParseInt(m[1], 10, 64); err == nil {
		p.Steps = max(p.Steps, n)
	}
	if v, err := strconv.ParseFloat(m[3], 64); err == nil && v > 0 {
		if m[4] == "it/s" {
			v = 1 / v
		}
		p.StepTime = v
	}
}

// memory takes a printed memory figure; a bare number counts as MiB, as detection trainers print it.
func (p *Progress) memory(line string) {
	m := memoryExpr().FindStringSubmatch(line)
	if m == nil || len(p.Memory) >= 256 {
		return
	}
	unit := m[3]
	if unit == "" {
		unit = "MiB"
	}
	if v, err := strconv.ParseFloat(m[2], 64); err == nil && v >= 1e7 && m[3] == "" {
		unit = "B" // more than any card has MiB
	}
	if size, ok := parseSize(m[2] + unit); ok && size.Bytes > units.MiB {
		p.Memory = append(p.Memory, size.Bytes)
	}
}
