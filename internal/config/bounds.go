package config

import (
	"fmt"
	"runtime/metrics"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

// What a config file's evaluation may take.
const (
	maxSteps   = 1_000_000 // Starlark's own steps: a loop without end stops within a second
	maxMemory  = 64 << 20  // of values: a list doubled a hundred times stops here
	checkSteps = 8         // steps between looks at the memory: a value grows by doublings
	maxAtOnce  = 1 << 20   // values that one step may make: [0] * n and range(n) make n
)

// bound stops the thread after maxSteps, or when the program's heap has grown by maxMemory.
func bound(thread *starlark.Thread) {
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(heap)
	start := heap[0].Value.Uint64()
	thread.SetMaxExecutionSteps(checkSteps)
	thread.OnMaxSteps = func(thread *starlark.Thread) {
		metrics.Read(heap)
		switch {
		case thread.Steps >= maxSteps:
			thread.Cancel(fmt.Sprintf("more than %d steps: does a loop never end?", maxSteps))
		case heap[0].Value.Uint64() > start+maxMemory:
			thread.Cancel("more than 64 MiB of values: does one grow without end?")
		}
		thread.SetMaxExecutionSteps(thread.Steps + checkSteps)
	}
}

// times is the function that stands for the operator: a name that no file can write.
const times = "*"

// watchTimes makes every x * y a call of times.
func watchTimes(file *syntax.File) {
	call := func(x, y syntax.Expr, at syntax.Position) *syntax.CallExpr {
		return &syntax.CallExpr{Fn: &syntax.Ident{NamePos: at, Name: times}, Lparen: at, Args: []syntax.Expr{x, y}, Rparen: at}
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		if a, ok := n.(*syntax.AssignStmt); ok && a.Op == syntax.STAR_EQ {
			a.Op, a.RHS = syntax.EQ, &syntax.BinaryExpr{X: a.LHS, OpPos: a.OpPos, Op: syntax.STAR, Y: a.RHS}
		}
		forEachExpr(n, func(e *syntax.Expr) {
			if b, ok := (*e).(*syntax.BinaryExpr); ok && b.Op == syntax.STAR {
				*e = call(b.X, b.Y, b.OpPos)
			}
		})
		return true
	})
}

// forEachExpr calls f for every place of n, not deeper, that holds an expression.
func forEachExpr(n syntax.Node, f func(*syntax.Expr)) {
	all := func(list []syntax.Expr) {
		for i := range list {
			f(&list[i])
		}
	}
	opt := func(e *syntax.Expr) {
		if *e != nil {
			f(e)
		}
	}
	switch n := n.(type) {
	case *syntax.AssignStmt:
		f(&n.RHS)
	case *syntax.ExprStmt:
		f(&n.X)
	case *syntax.IfStmt:
		f(&n.Cond)
	case *syntax.ForStmt:
		f(&n.X)
	case *syntax.WhileStmt:
		f(&n.Cond)
	case *syntax.ReturnStmt:
		opt(&n.Result)
	case *syntax.BinaryExpr:
		f(&n.X)
		f(&n.Y)
	case *syntax.UnaryExpr:
		opt(&n.X)
	case *syntax.ParenExpr:
		f(&n.X)
	case *syntax.CallExpr:
		all(n.Args)
	case *syntax.CondExpr:
		f(&n.Cond)
		f(&n.True)
		f(&n.False)
	case *syntax.Comprehension:
		f(&n.Body)
	case *syntax.ForClause:
		f(&n.X)
	case *syntax.IfClause:
		f(&n.Cond)
	case *syntax.DictEntry:
		f(&n.Key)
		f(&n.Value)
	case *syntax.DotExpr:
		f(&n.X)
	case *syntax.IndexExpr:
		f(&n.X)
		f(&n.Y)
	case *syntax.SliceExpr:
		f(&n.X)
		opt(&n.Lo)
		opt(&n.Hi)
		opt(&n.Step)
	case *syntax.LambdaExpr:
		f(&n.Body)
	case *syntax.ListExpr:
		all(n.List)
	case *syntax.TupleExpr:
		all(n.List)
	}
}

// boundedTimes is x * y, unless that repeats a list or a string too often.
func boundedTimes(_ *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
	for i := range args {
		if n, ok := args[i].(starlark.Int); ok {
			if seq, ok := args[1-i].(starlark.Indexable); ok && seq.Len() > 0 {
				if k, small := n.Int64(); !small && n.Sign() > 0 || k > maxAtOnce/int64(seq.Len()) {
					return nil, fmt.Errorf("%d values repeated %s times, more than the %d that a step may make: make it smaller", seq.Len(), n, maxAtOnce)
				}
			}
		}
	}
	return starlark.Binary(syntax.STAR, args[0], args[1])
}

// boundedRange is range(…) of at most maxAtOnce values, because list, sorted and their like take them all in one step.
func boundedRange(thread *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	r, err := starlark.Call(thread, starlark.Universe["range"], args, kwargs)
	if err != nil {
		return nil, err
	}
	if n := starlark.Len(r); n > maxAtOnce {
		return nil, fmt.Errorf("range of %d values, more than the %d that a step may make: make it smaller", n, maxAtOnce)
	}
	return r, nil
}
