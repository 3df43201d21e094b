package oom

import (
	"slices"
	"strings"
)

// A report is people's words around a program's. Its sentences are read clause by clause: one that tells of the failure, or
// stands beside one that does, may name what was being done ("while validating", "in the backward pass"); one that says what
// goes well names what was not.

// talk are pieces of words that a sentence about the failure holds one of.
var talk = append(strings.Fields("crash dies happens occurs caused oom kill memory vram 显存 内存 メモリ speicher 메모리 मेमोरी moire memoria train tun 训练 学習 infer generat validat evaluat step epoch init test predict sampl load "+
	"start captur decod iteration export onnx tensorrt demo saving detect backward forward optimizer compil 推 保存 process tokeniz checkpointing updat 生成 预测 微调 导出 "+
	"反向 初始化 验证 测试 phase stage 评估 評価 加载 inferenz auswert laden"), "val ")

// prose reads the text around such a piece, once.
func (r *Reader) prose(line []byte, h hit) {
	const most = 2048 // a log's lines hold them, too
	if r.said.line == r.lines && h.end <= r.said.end || r.said.times > most {
		return
	}
	start, end := max(0, h.end-reach), min(len(line), h.end+reach)
	r.said.line, r.said.end = r.lines, end
	text := string(line[start:end])
	if start == 0 {
		text = r.broken + text
	}
	if !speaks(text) {
		return
	}
	r.said.times++
	r.run.mention(text)
	r.run.say(text)
}

// brokenExpr is a line of prose that goes on in the next: words, and no end of a sentence.
var brokenExpr = lazy(`^[^\s#>|\x60*-][^=|{}<>]{28,}[\w,]$`)

// wrap keeps such a line, to be read with the next.
func (r *Reader) wrap() {
	r.broken = ""
	if r.lines <= early && len(r.line) < maxCode && brokenExpr().Match(r.line) && !frameExpr().Match(r.line) {
		r.broken = string(r.line) + " "
	}
}

// said is what prose was read last.
type said struct {
	line       int64
	end, times int
}

// heard is the phase that a sentence names, and how plainly: 3 beside the failure's own words, 2 in another clause, or as what
// fails itself, 1 that it was in training and no more.
type heard struct {
	sight
	weight int
}

// plainer is the plainer of two, the first of equals.
func (h heard) plainer(o heard) heard {
	if o.weight > h.weight {
		return o
	}
	return h
}

// inTraining is all that many a sentence says. Anything else says more.
var inTraining = sight{purpose: Forward}

var (
	// failsExpr are words for the failure, beside those of spoken.
	failsExpr = lazy(`(?i)` + spoken + `|\b(?:crash|fail|error|exception|abort|die|dying|exit|freez|stuck|problem|issue|trouble|stop|happen|occur|aris|appear|thr[oe]w|rais|rose|leak|kill|blow|break|broke)\w{0,4}\b|\b(?:comes|come|came|shows|goes|went) up\b|` +
		`\bmemory\b[^.\n]{0,40}\b(?:grow|increas|jump|spik|climb|ris|rose|explo|run|ran|leak|full|fill|exhaust|exceed|enough)\w*|\b(?:increas|rais)\w+ [^.\n]{0,20}\bmemory\b|\b(?:takes?|needs?|uses?|eats?|consumes?) (?:up )?(?:way |far )?(?:too much|all (?:of )?(?:the|my)|a (?:lot|ton) of|more and more) (?:\w+ )?(?:memory|vram|ram)\b|报错|错误|崩|杀|溢出|不够|不足|爆|满|エラー|落ち|fehler|abst[uü]rz`)
	// wellExpr is a clause that says what goes well, or where the failure is not.
	wellExpr = lazy(`(?i)\b(?:fine|ok|okay|works?|worked|working|normal|normally|success\w*|perfect\w*|smooth\w*|well|possible|no (?:\w+ )?(?:problems?|issues?|errors?|trouble|oom)|without (?:\w+ )?(?:problems?|issues?|errors?|trouble|oom|crash\w*))\b|` +
		`(?:\bnot|n't|\bnever) (?:\w+ ){0,2}(?:happen|occur|fail|crash|error|oom|problem|issue|the case|see)|正常|没问题|没有问题|成功|可以跑|問題な`)
	// modalExpr is what has not happened.
	modalExpr = lazy(`(?i)\b(?:may|might|could) (?:\w+ ){0,4}(?:fail|crash|error|oom|run out|happen|occur|cause)`)
	// notExpr turns what goes well around.
	notExpr = lazy(`(?i)(?:\bnot|n't|\bnever|\bno longer|\bcannot) (?:\w+ ){0,2}(?:fine|ok|okay|work\w*|success\w*|well)\b`)
	// whenExpr are the words that a clause names a time or a place after.
	whenExpr = lazy(`(?i)\b(?:during|when(?:ever)?|while|if|because|in(?:side)?|on(?:ce)?|at|upon|for|doing|running|with|calling|trying to|tries to|to|into|enters?|entering|attempt(?:ing|s) to|until|by|starts?|begins?|reach(?:es|ed|ing))\b`)
	// firstExpr is a clause's first word.
	firstExpr = lazy(`^\W*\w+(?:\s|$)`)
	// phraseExpr is what follows them, as far as it belongs there.
	phraseExpr = lazy(`^(?:[^\w.\n]+[\w.]+){1,5}`)
	// duringExpr is training under way; when training, or starting it, fails may be before its first step.
	duringExpr = lazy(`(?i)` + either(
		`\b(?:during|while|in the (?:middle|process) of)\s+(?:(?:the|i|am|it|is|my|running|[\w-]+|rl)\s+){0,3}(?:pre-?)?tra(?:in|n)(?:n?ing|s|ed)?(?:\s|[,;:!?)]|$)`,
		`\b(?:after|at|in) (?:about |around |only |just |the |first |a )*(?:~ ?)?(?:\d[\d,k]*|few|several|some|many|first|second)\S* (?:(?:hundreds?|thousands?|of) ){0,3}(?:training |global |optimi[sz]ation )?(?:step|iteration|iter|batch|minibatch)(?:e?s)?\b`,
		`\bat (?:the )?(?:training |global )?(?:iteration|iter|step|epoch) #?\d`,
		`\b(?:in|on) (?:iteration|iter|epoch) #?\d`,
		`\bin training(?:[\s,;:!?)]*$|\s+(?:loop|step|process|phase|stage)\b)`,
		`\b(?:starting|during|in|at|within)(?: the| an?| first| second| third| last| random| middle of)* (?:\w+ )?epoch\b`,
		`\b(?:beginning|start|middle) of (?:the |a |an |each |every )?(?:\w+ )?epoch\b`,
		`\bafter (?:about |around |~ ?)?[\d.]+ ?(?:%|percent|minutes?|hours?|h|days?) (?:of )?(?:the )?train`,
		`\bwith (?:training|more|increasing) (?:step|iteration)s`,
		`训练(?:时|的时候|过程|中|到)`,
		`学習中`,
	))
	// epochEndExpr is the end of an epoch, where programs evaluate.
	epochEndExpr = lazy(`(?i)\bend(?:s|ing)? of (?:the |an? |each |every |one |my )?(?:\w+ )?epoch\b|\bepoch (?:is |was |has |had |gets )?(?:ends|ended|finish\w*|complet\w*|done|over)\b|\bafter (?:finishing|completing) (?:the |an? |each |one )?(?:\w+ )?epoch\b|epoch ?(?:结束|跑完|训练完)|轮(?:训练)?结束|エポック(?:の)?終`)
	// endsExpr ends a sentence, and joinsExpr a clause of it.
	endsExpr  = lazy(`[.!?;]+(?:\s+|$)|\n|[。！？；]`)
	joinsExpr = lazy(`(?i)[,():]+(?:\s+|$)|[，、（）：]+|\s(?:but|however|yet|although|though|whereas|and then|then|-+|–|—|->|=>)\s|但是?|然后|而`)
)

// told is the phase that a text's sentences about the failure name.
func told(text string) heard {
	if code, note, ok := strings.Cut(text, "#"); ok && titleExpr().MatchString(note) { // loss.backward()  # out of memory here
		if s := (Traceback{{Code: strings.TrimSpace(code)}}).sight(); s != (sight{}) {
			return heard{s, 3}
		}
	}
	if frameExpr().MatchString(text) {
		return heard{}
	}
	var best heard
	for _, sentence := range endsExpr().Split(text, -1) {
		if failsExpr().MatchString(sentence) {
			best = best.plainer(sentenceSays(sentence))
		}
	}
	return best
}

// frameExpr is a call's line or a progress bar, and pathExpr a file's place or a command: their words are not people's. callExpr is a call
// that a sentence names.
var (
	frameExpr = lazy(`\bline \d+, in |\.py:\d+|\d+/\d+ \[\d`)
	callExpr  = lazy(`(\.\w+|\b[a-z]+_\w+)\(\)`)
	pathExpr  = lazy(`\x60[^\x60\n]{40,}(?:\x60|$)|https?:[!-~]+|[!-~]+/[!-~]+/[!-~]+|[!-~]+\.cc\b[!-~]*`)
)

// orExpr is a second word for the one before it.
var orExpr = lazy(`(?i) ?\(or \w+\) `)

// sentenceSays reads one sentence that tells of the failure.
func sentenceSays(sentence string) heard {
	switch s := called(sentence); s {
	case sight{}:
		return clausesSay(sentence)
	case sight{doing: Forward}: // which pass, its purpose tells
		return heard{s.or(clausesSay(calledExpr().ReplaceAllString(sentence, " ")).sight), 3}
	default:
		return heard{s, 3}
	}
}

// clausesSay reads its clauses.
func clausesSay(sentence string) heard {
	sentence = orExpr().ReplaceAllString(sentence, " ")
	var best heard
	for _, clause := range joinsExpr().Split(callExpr().ReplaceAllString(pathExpr().ReplaceAllString(sentence, ""), "$1"), -1) {
		if startExpr().MatchString(clause) && !read(clause).has(kCompile) {
			return heard{sight{doing: Init}, 3}
		}
		if duringExpr().MatchString(clause) {
			clause = resumesExpr().ReplaceAllString(clause, "") // it got further than that
		}
		fails := failsExpr().FindStringIndex(clause)
		well := wellExpr().MatchString(clause) && !notExpr().MatchString(clause)
		if well || modalExpr().MatchString(clause) || fails != nil && adviceExpr().MatchString(clause) {
			continue
		}
		for _, at := range whenExpr().FindAllStringIndex(clause, 16) {
			phrase := phraseExpr().FindString(clause[at[1]:])
			if s := named(phrase, 0); s != (sight{}) {
				weight := 2
				if fails != nil {
					weight = 3
				}
				best = best.plainer(heard{s, weight})
			}
		}
		if at := firstExpr().FindString(clause); fails == nil && at != "" && read(at).has(kEval|kSample|kLoad|kExport) { // "(inference on images)"
			if s := named(clause, kServe); s != (sight{}) {
				best = best.plainer(heard{s, 2})
			}
		}
		if fails != nil { // "validation runs out of memory": what fails stands before it
			if s := titled(clause[:fails[0]]); s != (sight{}) {
				best = best.plainer(heard{s, 2})
			}
		}
		if epochEndExpr().MatchString(clause) {
			h := heard{sight{purpose: Eval}, 2}
			if fails != nil {
				h.weight = 3
			}
			best = best.plainer(h)
		}
		if duringExpr().MatchString(clause) {
			best = best.plainer(heard{inTraining, 1})
		}
	}
	return best.plainer(abroad(sentence))
}

// calledExpr is a call that a sentence names as what was being done: "when calling `model.cuda()`".
var calledExpr = lazy("(?i)(?:^\\W*|\\b(?:calls?|calling|called|caused by|due to|do(?:ing)?|run(?:ning)?|during|in|at|on|when|while|after|until|up to|reach(?:es|ing)?|line)(?: the| to| just| i)*\\s+|代码[：:]?\\s*|这(?:一)?[行句][：:]?\\s*)[`'\"*]*(?:[\\w., ]{1,40} = )?([\\w.\\[\\]()]*\\.?\\w+\\([^()\n]{0,80}(?:\\([^()\n]{0,80}\\)[^()\n]{0,80})?\\))")

// called is what such a call shows. What is moved and not named is the model.
func called(text string) sight {
	if adviceExpr().MatchString(text) {
		return sight{}
	}
	for _, m := range calledExpr().FindAllStringSubmatch(text, 8) {
		code := m[1]
		if code[0] == '.' {
			code = "model" + code
		}
		if s := (Traceback{{Code: code}}).sight(); s != (sight{}) {
			return s
		}
	}
	return sight{}
}

// piece is a word of a language that is written without blanks, or bends its words: a piece to look for, and what it says.
type piece struct {
	text string
	sight
}

var pieces = []piece{
	{"推理", sight{purpose: Sample}}, {"推論", sight{purpose: Sample}}, {"生成", sight{purpose: Sample}}, {"quick start", sight{purpose: Sample}}, {"demo", sight{purpose: Sample}}, {"预测", sight{purpose: Sample}}, {"予測", sight{purpose: Sample}}, {"Inferenz", sight{purpose: Sample}},
	{"测试", sight{purpose: Eval}}, {"验证", sight{purpose: Eval}}, {"評価", sight{purpose: Eval}}, {"评估", sight{purpose: Eval}}, {"评测", sight{purpose: Eval}}, {"検証", sight{purpose: Eval}}, {"Auswert", sight{purpose: Eval}}, {"Validierung", sight{purpose: Eval}}, {"मूल्यांकन", sight{purpose: Eval}},
	{"加载数据", sight{doing: Data}}, {"读取数据", sight{doing: Data}}, {"数据加载", sight{doing: Data}}, {"数据处理", sight{doing: Data}}, {"预处理", sight{doing: Data}}, {"保存", sight{doing: Save}}, {"合并", sight{doing: Save}},
	{"加载", sight{doing: Load}}, {"载入", sight{doing: Load}}, {"読み込み", sight{doing: Load}}, {"Laden", sight{doing: Load}}, {"初始化", sight{doing: Init}}, {"初期化", sight{doing: Init}}, {"编译", sight{doing: Compile}},
	{"反向传播", sight{doing: Backward}}, {"反向", sight{doing: Backward}}, {"前向", sight{doing: Forward}}, {"优化器", sight{doing: Optimizer}},
	{"训练", inTraining}, {"学習", inTraining}, {"微调", inTraining}, {"Training", inTraining},
}

// timeExpr is what follows a piece that says when.
var timeExpr = lazy(`^[^，。,.\n]{0,18}?(?:时|的时候|时候|过程|阶段|期间|中|就|に|時|で)`)

// abroad is what the pieces say in a sentence about memory: first those that say when.
func abroad(sentence string) heard {
	if !memoryWords().MatchString(sentence) && !hanExpr().MatchString(sentence) {
		return heard{}
	}
	var best heard
	for _, clause := range joinsExpr().Split(sentence, -1) {
		if wellExpr().MatchString(clause) {
			continue
		}
		for _, p := range pieces {
			_, rest, found := strings.Cut(clause, p.text)
			h := heard{p.sight, 2}
			switch {
			case !found:
				continue
			case p.sight == inTraining:
				h.weight = 1
			case timeExpr().MatchString(rest):
				h.weight = 3
			}
			best = best.plainer(h)
		}
	}
	return best
}

// memoryWords are a failure of memory in the languages of pieces, and hanExpr is one that needs no blanks.
var (
	memoryWords = lazy(`(?i)メモリ|speicher|मेमोरी`)
	hanExpr     = lazy(`\p{Han}`)
)

// speaks is a quick look whether a line may be about the failure.
func speaks(text string) bool {
	text = strings.ToLower(text)
	return slices.ContainsFunc(failing, func(w string) bool { return strings.Contains(text, w) })
}

var failing = []string{"memory", "memmory", "oom", "crash", "kill", "error", "fail", "happen", "occur", "die", "stop", "exception", "problem", "issue", "vram", "leak", "thrown", "raise", "appear", "arise", "exit", "stuck",
	"显存", "内存", "报错", "错误", "杀", "崩", "爆", "溢出", "エラー", "メモリ", "speicher", "मेमोरी", "메모리", "moire", "memoria"}

// startExpr is a program that does not come up.
var startExpr = lazy(`(?i)\b(?:not|fail\w*|unable|can't|cannot) (?:to )?(?:be )?(?:start|launch|boot)|\bstart-?up\b|\b(?:starting|launching) (?:the |up )?(?:[\w-]+[ -])?(?:server|service|engine|api|webui|web ui|gui|app|application|program|container|sd|stable diffusion|a1111|automatic1111|forge|comfyui|invokeai|fooocus)\b`)

// idleExpr are words of a title that name nothing done: a setup that somebody has, an error that something generates.
var idleExpr = lazy(`(?i)\bsetup\b|\bafter (?:the )?(?:sav|load|restor)\w*.*$|(?:gradient|activation)[ -]checkpointing|\btrain\w*/(?:test|eval|valid|infer)\w*|\bresum\w* (?:the )?(?:train|fine)\w*|\bgenerat(?:es?|ed|ing) (?:an? |the )?(?:\w+ ){0,2}(?:error|oom\b|out of memory)`)

// contrastExpr is a sentence whose first half goes well: "evaluation runs while training does not".
var contrastExpr = lazy(`(?i)\b(?:runs?|works?|fine|ok|okay|possible|succeeds?|completes?|passes|trains|loads)\b.*?\b(?:while|but|whereas|and|yet)\b(.*\b(?:not|no|never|fails?|crash\w*|oom\w*|runs out|out of memory|error)\b.*|.*n't\b.*)$`)

var (
	// feedsExpr is the making of what a model is fed with.
	feedsExpr = lazy(`(?i)\bpre-? ?pro(?:c\w*)?\b|\btokeni[sz](?:ing|ation)\b|\bprocess(?:es|ed)? (?:the |my )?(?:\w+ )?data(?:set)?\b|\bdata(?:set)? (?:loading|preparation|preparing|creation|creating|generation|generating|building|conversion|processing)|\b(?:load|read|creat|build|process|prepar)ing (?:\w+ ){0,3}data(?:set)?s?\b`)
	// outputExpr is output for its own sake, in words that code has for other things.
	outputExpr = lazy(`(?i)` + either(
		`\bfeature[ _]extraction\b`,
		`\bextract\w*[ _](?:\w+[ _]){0,2}(?:features?|embeddings?|vectors?|tokens?|latents?|frames?)\b`,
		`\b(?:creat|mak|comput|calculat|generat|get|obtain|produc)\w* (?:\w+ ){0,3}(?:embeddings|descriptors|similarit\w+)\b`,
		`\b(?:for|with) (?:\w+ ){0,2}embeddings\b`,
		`\bencod(?:e|ing) (?:\w+ ){0,4}(?:to|into|as) (?:tensors?|vectors?|embeddings?)`,
		`\b(?:extract|export|visuali[sz]|reconstruct|sav|writ|generat)\w*[ _](?:the |an? |my )?(?:\w+[ _]){0,2}(?:mesh(?:es)?|point[ _]?clouds?|videos?|depth|textures?)\b`,
		`\bmesh (?:extraction|reconstruction|generation)\b`,
		`\bmesh(?:es)? (?:\w+ ){0,3}extracted\b`,
		`\bstreaming (?:an? |the )?(?:response|answer|output|reply)`,
		`\bduring streaming\b`,
		`^\W*(?:doing |performing |running |applying )?(?:the |an? )?(?:recognition|super-?resolution|diari[sz]ation|colori[sz]ation|transcription|upscaling|upsampling|inpainting|source separation)\b`,
	))
	// resumesExpr is loading what an earlier run left.
	resumesExpr = lazy(`(?i)\bresum\w* (?:the )?(?:train|fine)\w*(?: \w+){0,2} from\b`)
	// savesExpr is what else saving is called.
	savesExpr = lazy(`(?i)\bcheckpointing\b`)
)

// titled is the phase that the words of a title name: a program that is named for serving does not.
func titled(title string) sight { return named(title, kServe) }

// named is the phase that words name, those of some kinds left out. What is done first is done: loading a trained model is loading.
func named(title string, except kind) sight {
	if startExpr().MatchString(title) && !read(title).has(kCompile) {
		return sight{doing: Init}
	}
	if resumesExpr().MatchString(title) && !duringExpr().MatchString(title) {
		return sight{doing: Load}
	}
	title = idleExpr().ReplaceAllString(title, "")
	if m := contrastExpr().FindStringSubmatch(title); m != nil {
		title = m[1]
	}
	switch {
	case feedsExpr().MatchString(title):
		return sight{doing: Data}
	case savesExpr().MatchString(title):
		return sight{doing: Save}
	case outputExpr().MatchString(title):
		return sight{purpose: Sample}
	}
	if s := phrased(title); s != (sight{}) {
		return s
	}
	n := read(title)
	n.kind &^= except
	switch n.first(kTrain | kEval | kSample | kLoad | kSave | kExport | kBuild | kForward | kBackward) {
	case kLoad:
		if n.has(kData | kDataset) {
			return sight{doing: Data}
		}
		return sight{doing: Load}
	case kEval:
		if n.shows() {
			return sight{purpose: Sample}
		}
		return sight{purpose: Eval}
	case kSave:
		return sight{doing: Save}
	}
	if phase := doing(n, n); phase != "" && (phase != Init || n.has(kBuild)) && (phase != Forward || n.has(kForward)) && (phase != Load || n.has(kLoad) || strings.Contains(title, "_")) && !n.has(kTrain) {
		return sight{doing: phase}
	}
	p := Progress{Status: activity(n)}
	if p.Status == Forward {
		p.Status = ""
	}
	return p.sight()
}
