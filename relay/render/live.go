// SPDX-License-Identifier: Apache-2.0

package render

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/boxd-dev/boxd/internal/tty"
	"github.com/boxd-dev/boxd/relay/client"
)

// lookEvery is how often it is looked.
const lookEvery = time.Second

// Keys that end a live picture.
const (
	keyQuit  = 'q'
	keyCtrlC = 3
)

// LookAgain looks once more, a moment after the first time, so that there are rates.
func (t *Looker) LookAgain(ctx context.Context, first *Top) (*Top, error) {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	select {
	case <-timer.C:
		return t.Look(ctx, first)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Print prints a picture as text.
func (v *Top) Print(out io.Writer) error {
	for _, line := range v.Lines() {
		if _, err := fmt.Fprintln(out, line.In(Style{}, TopColumns)); err != nil {
			return err
		}
	}
	return nil
}

// Live draws on the terminal out until a key or a signal, which is returned, ends it. The terminal is then as
// it was.
func (t *Looker) Live(ctx context.Context, in io.Reader, out io.Writer, v *Top, signals <-chan os.Signal) (os.Signal, error) {
	screen, err := tty.OpenScreen(in, out)
	if err != nil {
		return nil, err
	}
	defer screen.Close()
	var keys <-chan byte
	if tty.Is(in) {
		keys = tty.Keys(in)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resized := make(chan struct{}, 1)
	go tty.Watch(ctx, func(tty.Size) { // ends with ctx
		select {
		case resized <- struct{}{}:
		default:
		}
	}, out)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	looks, looking := make(chan look, 1), false
	lines := v.Lines()
	for {
		if err := draw(screen, lines, out); err != nil {
			return nil, err
		}
		select {
		case key, ok := <-keys:
			if !ok || key == keyQuit || key == keyCtrlC {
				return nil, nil //nolint:nilnil // neither a signal nor an error has ended it
			}
		case sig := <-signals:
			return sig, nil
		case <-resized:
		case <-tick.C:
			if !looking { // keys are obeyed meanwhile, whatever boxd does
				looking = true
				go func(before *Top) { // ends with ctx
					next, err := t.Look(ctx, before)
					looks <- look{next, err}
				}(v)
			}
		case l := <-looks:
			looking = false
			switch {
			case errors.Is(l.err, client.NotFound):
				return nil, l.err
			case l.err != nil: // boxd may come back
				lines = append([]Line{{Text: "boxctl: " + Printable(l.err.Error()), Bad: true}, {}}, v.Lines()...)
			default:
				v, lines = l.top, l.top.Lines()
			}
		}
	}
}

// look is what a Look has come to.
type look struct {
	top *Top
	err error
}

func draw(screen *tty.Screen, lines []Line, out io.Writer) error {
	size, ok := tty.SizeOf(out)
	if !ok {
		size = tty.Size{Rows: 24, Cols: 80}
	}
	style := StyleOf(out)
	drawn := make([]string, len(lines))
	for i, line := range lines {
		drawn[i] = line.In(style, int(size.Cols))
	}
	return screen.Draw(drawn, int(size.Rows))
}
