package cli

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// untilStopped ends the context when snug is asked to stop: by Ctrl-C, by kill, by a terminal that closes. What snug was
// started to ignore (nohup, a job in the background of a script) stays ignored.
func untilStopped(ctx context.Context) (context.Context, context.CancelFunc) {
	asked := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}
	return signal.NotifyContext(ctx, slices.DeleteFunc(asked, signal.Ignored)...)
}
