// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/test/bench/floor"
)

// many is a configuration with limits above everything that is measured, and the longest possible answers.
const many = "[sessions]\nmax = 4096\n[exec]\nmax_per_session = 256\noutput_limit = \"64MiB\"\n[queue]\nlength = 1024\n"

// How often each point of a line is measured.
const (
	growthEach = 40
	memoryOf   = 50 // boxes whose memory is measured
)

// growSessions measures creation, and memory, with an increasing number of sessions.
func (b *bench) growSessions(ctx context.Context, p *page, counts []int) error {
	rows := [][]string{{"sessions that live", "boxd", "create, lower quartile µs", "median", "upper quartile", "of the first", "boxd, PSS of a session", "PID 1, PSS of a box"}}
	var lines []line
	for _, bin := range b.bins() {
		name := "g" + strconv.Itoa(len(lines))
		c, err := b.startDaemonOf(ctx, bin.dir, name, 0, many)
		if err != nil {
			return err
		}
		daemon := b.daemons[len(b.daemons)-1].Process.Pid
		empty, err := pss(daemon)
		if err != nil {
			return err
		}
		l := line{name: bin.label}
		var inits []uint32
		for _, want := range counts {
			for len(inits) < want {
				s, _, err := c.CreateSession(ctx, &api.SessionRequest{ID: "live" + strconv.Itoa(len(inits))})
				if err != nil {
					return fmt.Errorf("session %d: %w", len(inits), err)
				}
				inits = append(inits, s.PID)
			}
			time.Sleep(time.Second) // their remaining work is done
			times, err := repeat(ctx, growthEach, func() error {
				_, _, err := c.CreateSession(ctx, &api.SessionRequest{ID: "more"})
				return err
			}, func() error { return c.DeleteSession(ctx, "more") })
			if err != nil {
				return err
			}
			now, err := pss(daemon)
			if err != nil {
				return err
			}
			var inside int64
			for _, pid := range inits[:min(memoryOf, len(inits))] {
				kib, err := pss(int(pid))
				if err != nil {
					return err
				}
				inside += kib
			}
			q := quartile(times, 0.25)
			l.points = append(l.points, [2]float64{float64(want), float64(q.Microseconds())})
			rows = append(rows, []string{
				strconv.Itoa(want), bin.label, fmt.Sprint(q.Microseconds()), fmt.Sprint(quartile(times, 0.5).Microseconds()), fmt.Sprint(quartile(times, 0.75).Microseconds()),
				fmt.Sprintf("%.2f", l.points[len(l.points)-1][1]/l.points[0][1]), fmt.Sprintf("%.1f KiB", float64(now-empty)/float64(want)), fmt.Sprintf("%d KiB", inside/int64(min(memoryOf, len(inits)))),
			})
		}
		lines = append(lines, l)
		b.stopLast()
	}
	p.table("Create beside sessions that live", rows)
	return p.picture("sessions", "create by sessions that live", lineChart("create, lower quartile, µs", lines))
}

// repeat times an operation repeatedly, undoing it each time. The times are sorted.
func repeat(ctx context.Context, n int, do, undo func() error) ([]time.Duration, error) {
	times := make([]time.Duration, 0, n)
	for range n {
		start := time.Now()
		err := errors.Join(ctx.Err(), do())
		times = append(times, time.Since(start))
		if err = errors.Join(err, undo()); err != nil {
			return nil, err
		}
		time.Sleep(settle)
	}
	slices.Sort(times)
	return times, nil
}

// text returns a command that prints that many bytes of text.
func text(size int) string {
	return "yes 'some words of output, as a compiler prints them' | head -c " + strconv.Itoa(size)
}

// longestAnswer is the largest output that is measured in an answer; more needs a stream.
const longestAnswer = 32 << 20

// growOutput measures executions with increasing output, in an answer and by a stream, next to a bare pipe.
func (b *bench) growOutput(ctx context.Context, p *page, sizes []int) error {
	rows := [][]string{{"output", "bare pipe, lower quartile µs", "boxd", "in an answer", "ratio", "by a stream", "ratio"}}
	var lines []line
	for _, bin := range b.bins() {
		c, err := b.startDaemonOf(ctx, bin.dir, "u"+strconv.Itoa(len(lines)), 0, many)
		if err != nil {
			return err
		}
		if _, _, err := c.CreateSession(ctx, &api.SessionRequest{ID: "out"}); err != nil {
			return err
		}
		answers, streams := line{name: bin.label + ", answer"}, line{name: bin.label + ", stream"}
		for _, size := range sizes {
			ways := [3]func() error{
				func() error { return bareOutput(ctx, size) },
				func() error { return answerOf(ctx, c, size) },
				func() error { return streamOf(ctx, c, size) },
			}
			var times [3][]time.Duration
			for range max(3, min(growthEach, (64<<20)/size)) {
				for i, once := range ways {
					if i == 1 && size > longestAnswer {
						continue
					}
					elapsed, err := timed(once)()
					if err != nil {
						return fmt.Errorf("%d bytes of output: %w", size, err)
					}
					times[i] = append(times[i], elapsed)
					time.Sleep(time.Millisecond)
				}
			}
			var q [3]float64
			for i := range times {
				slices.Sort(times[i])
				q[i] = float64(quartile(times[i], 0.25).Microseconds())
			}
			row := []string{short(float64(size)) + "B", fmt.Sprint(q[0]), bin.label, "", "", fmt.Sprint(q[2]), fmt.Sprintf("%.2f", q[2]/q[0])}
			streams.points = append(streams.points, [2]float64{float64(size), q[2] / q[0]})
			if q[1] > 0 {
				row[3], row[4] = fmt.Sprint(q[1]), fmt.Sprintf("%.2f", q[1]/q[0])
				answers.points = append(answers.points, [2]float64{float64(size), q[1] / q[0]})
			}
			rows = append(rows, row)
		}
		lines = append(lines, streams, answers)
		b.stopLast()
	}
	p.table("Output", rows)
	return p.picture("output", "an execution with output, as a multiple of a bare pipe", lineChart("ratio to a bare pipe", lines))
}

func bareOutput(ctx context.Context, size int) error {
	out, err := exec.CommandContext(ctx, "sh", "-c", text(size)).Output()
	if err == nil && len(out) != size {
		err = fmt.Errorf("%d bytes", len(out))
	}
	return err
}

func answerOf(ctx context.Context, c *client.Client, size int) error {
	r, err := c.Exec(ctx, "out", &api.ExecRequest{Command: new(text(size))})
	if err = succeed(r, err); err == nil && len(r.Stdout) != size {
		err = fmt.Errorf("%d bytes", len(r.Stdout))
	}
	return err
}

func streamOf(ctx context.Context, c *client.Client, size int) error {
	n := counter(0)
	r, err := c.ExecStream(ctx, "out", &api.ExecRequest{Command: new(text(size))}, client.Stdio{Stdout: &n, Stderr: io.Discard}, nil)
	if err == nil && (r.Status != "exited" || int(n) != size) {
		err = fmt.Errorf("%s after %d bytes", r.Status, n)
	}
	return err
}

// rateFor is how long a rate is measured.
const rateFor = 3 * time.Second

// rates measures operations per second with concurrent clients: executions, and creates with deletes.
func (b *bench) rates(ctx context.Context, p *page) error {
	floors := map[int]float64{}
	for _, n := range []int{1, 8, 32, 128} {
		var err error
		if floors[n], err = b.floorRate(ctx, n, program); err != nil {
			return err
		}
	}
	clones, err := b.floorRate(ctx, 8, "-n", program)
	if err != nil {
		return err
	}
	rows := [][]string{{"clients", "sessions", "boxd", "executions a second", "of the floor's own rate"}}
	creates := [][]string{{"clients", "boxd", "creates + deletes a second", "of bare clones into all namespaces"}}
	for i, bin := range b.bins() {
		name := "r" + strconv.Itoa(i)
		c, err := b.startDaemonOf(ctx, bin.dir, name, 4, many)
		if err != nil {
			return err
		}
		socket := filepath.Join(b.dir, name, "s")
		for n := range 8 {
			if _, _, err := c.CreateSession(ctx, &api.SessionRequest{ID: "rate" + strconv.Itoa(n)}); err != nil {
				return err
			}
		}
		for _, sessions := range []int{1, 8} {
			for _, clients := range []int{1, 8, 32, 128} {
				rate, err := rateOf(ctx, clients, func(n int) (func() error, error) {
					bare, err := newBareClient(socket)
					return func() error { return bare.exec("rate" + strconv.Itoa(n%sessions)) }, err
				})
				if err != nil {
					return fmt.Errorf("%d clients over %d sessions: %w", clients, sessions, err)
				}
				rows = append(rows, []string{strconv.Itoa(clients), strconv.Itoa(sessions), bin.label, fmt.Sprintf("%.0f", rate), fmt.Sprintf("%.2f", rate/floors[clients])})
			}
		}
		const creators = 8
		rate, err := rateOf(ctx, creators, func(n int) (func() error, error) {
			id := "made" + strconv.Itoa(n)
			return func() error {
				_, _, err := c.CreateSession(ctx, &api.SessionRequest{ID: id})
				return errors.Join(err, c.DeleteSession(ctx, id))
			}, nil
		})
		if err != nil {
			return err
		}
		creates = append(creates, []string{strconv.Itoa(creators), bin.label, fmt.Sprintf("%.0f", rate), fmt.Sprintf("%.2f", rate/clones)})
		b.stopLast()
	}
	p.table("Executions by clients at once", rows)
	p.table("Creates by clients at once", creates)
	return nil
}

// floorRate measures how often n concurrent helpers run a program per second.
func (b *bench) floorRate(ctx context.Context, n int, argv ...string) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the helpers
	return rateOf(ctx, n, func(int) (func() error, error) {
		h, err := floor.NewTimer(ctx, b.floor(), argv...)
		return func() error { _, err := h.Once(); return err }, err
	})
}

// rateOf measures how many operations per second the clients do, each in a loop.
func rateOf(ctx context.Context, clients int, begin func(n int) (do func() error, err error)) (float64, error) {
	ways := make([]func() error, clients)
	for n := range ways {
		var err error
		if ways[n], err = begin(n); err != nil {
			return 0, err
		}
	}
	var count atomic.Int64
	var work sync.WaitGroup
	failed := make(chan error, clients)
	start := time.Now()
	for _, do := range ways {
		work.Go(func() {
			for ctx.Err() == nil && time.Since(start) < rateFor {
				if err := do(); err != nil {
					failed <- err
					return
				}
				count.Add(1)
			}
		})
	}
	work.Wait()
	elapsed := time.Since(start)
	select {
	case err := <-failed:
		return 0, err
	default:
		return float64(count.Load()) / elapsed.Seconds(), ctx.Err()
	}
}
