// SPDX-License-Identifier: Apache-2.0

package render

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/boxd-dev/boxd/relay/client"
)

// sampleEvery is the interval of samples.
const sampleEvery = time.Second

// Keys that end the live display.
const (
	keyQuit  = 'q'
	keyCtrlC = 3
)

// SampleAgain takes a second sample after sampleEvery, so that rates are known.
func (t *Sampler) SampleAgain(ctx context.Context, first *Top) (*Top, error) {
	timer := time.NewTimer(sampleEvery)
	defer timer.Stop()
	select {
	case <-timer.C:
		return t.Sample(ctx, first)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Print prints a picture as text.
func (v *Top) Print(out io.Writer) error {
	for _, line := range v.lines() {
		if _, err := fmt.Fprintln(out, line.in(palette{}, topColumns)); err != nil {
			return err
		}
	}
	return nil
}

// Live draws on the terminal out until a key or a signal, which is returned, ends it. It restores the terminal then.
func (t *Sampler) Live(ctx context.Context, in io.Reader, out io.Writer, v *Top, signals <-chan os.Signal) (os.Signal, error) {
	screen, err := newScreen(in, out)
	if err != nil {
		return nil, err
	}
	defer screen.Close()
	var keys <-chan byte
	if IsTerminal(in) {
		keys = readKeys(in)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resized := make(chan struct{}, 1)
	go WatchSize(ctx, func(TerminalSize) { // ends with ctx
		select {
		case resized <- struct{}{}:
		default:
		}
	}, out)
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	samples, sampling := make(chan sample, 1), false
	lines := v.lines()
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
		case <-ticker.C:
			if !sampling { // keys work meanwhile, even if boxd does not answer
				sampling = true
				go func(before *Top) { // ends with ctx
					next, err := t.Sample(ctx, before)
					samples <- sample{next, err}
				}(v)
			}
		case l := <-samples:
			sampling = false
			switch {
			case errors.Is(l.err, client.NotFound):
				return nil, l.err
			case l.err != nil: // boxd may come back
				lines = append([]topLine{{Text: "boxctl: " + Printable(l.err.Error()), Bad: true}, {}}, v.lines()...)
			default:
				v, lines = l.top, l.top.lines()
			}
		}
	}
}

// sample is the result of a Sample.
type sample struct {
	top *Top
	err error
}

func draw(to *screen, lines []topLine, out io.Writer) error {
	size, ok := SizeOfTerminal(out)
	if !ok {
		size = TerminalSize{Rows: 24, Cols: 80}
	}
	style := styleOf(out)
	drawn := make([]string, len(lines))
	for i, line := range lines {
		drawn[i] = line.in(style, int(size.Cols))
	}
	return to.draw(drawn, int(size.Rows))
}
