// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// What is transferred, and how often, in each round.
const (
	bulkBytes  = 1 << 30
	bulkScript = "cat /dev/zero | head -c 1073741824"
	echoLines  = 1000
	echoFirst  = 5000 // lines before those, not measured: whatever started the program is still busy
	idleBoxes  = 200
)

// way is one way for bytes to reach a client. Each round adds a measurement; the ratio is to the first way.
type way struct {
	name  string
	once  func(ctx context.Context) (time.Duration, error)
	times []time.Duration
}

// streams measures the transfer of output, in interleaved rounds, and the cost of an idle box.
func (b *bench) streams(ctx context.Context, to io.Writer, c *client.Client, rounds int) error {
	bulk := []*way{
		{name: "bulk: a bare pipe", once: bareBulk},
		{name: "bulk: boxd, WebSocket", once: func(ctx context.Context) (time.Duration, error) { return streamBulk(ctx, c) }},
		{name: "bulk: boxd, the descriptors themselves", once: func(ctx context.Context) (time.Duration, error) { return directBulk(ctx, c) }},
	}
	echo := []*way{
		{name: "echo of a line: a bare pair of pipes", once: func(ctx context.Context) (time.Duration, error) { return bareEcho(ctx, false) }},
		{name: "echo of a line: a bare pair of pipes between two cores", once: func(ctx context.Context) (time.Duration, error) { return bareEcho(ctx, true) }},
		{name: "echo of a line: boxd, WebSocket", once: func(ctx context.Context) (time.Duration, error) { return streamEcho(ctx, c) }},
		{name: "echo of a line: boxd, the descriptors themselves", once: func(ctx context.Context) (time.Duration, error) { return directEcho(ctx, c) }},
	}
	for range rounds {
		for _, w := range append(slices.Clone(bulk), echo...) {
			elapsed, err := w.once(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			w.times = append(w.times, elapsed)
		}
	}
	out := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "way\tn\tmin\tmedian\tratio\t")
	for _, ways := range [][]*way{bulk, echo} {
		for _, w := range ways {
			slices.Sort(w.times)
			median, bare := w.times[len(w.times)/2], ways[0].times[len(ways[0].times)/2]
			ratio := float64(median) / float64(bare)
			if &ways[0] == &bulk[0] { // throughput
				ratio = 1 / ratio
			}
			fmt.Fprintf(out, "%s\t%d\t%v\t%v\t%.2f\t\n", w.name, len(w.times), w.times[0].Round(time.Microsecond/10), median.Round(time.Microsecond/10), ratio)
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return b.idle(ctx, to, c)
}

// bareBulk reads from a pipe as a client of boxd does from its connection.
func bareBulk(ctx context.Context) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, "sh", "-c", bulkScript)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	if err := all(out); err != nil {
		return 0, err
	}
	return time.Since(start), cmd.Wait()
}

// all reads everything, and only counts the bytes.
func all(r io.Reader) error {
	buf, n := make([]byte, 64<<10), 0
	for {
		m, err := r.Read(buf)
		n += m
		if errors.Is(err, io.EOF) && n == bulkBytes {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%d bytes, not %d: %w", n, bulkBytes, err)
		}
	}
}

type counter int

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

func streamBulk(ctx context.Context, c *client.Client) (time.Duration, error) {
	n := counter(0)
	start := time.Now()
	r, err := c.ExecStream(ctx, "bench", &api.ExecRequest{Command: new(bulkScript)}, client.Stdio{Stdout: &n, Stderr: os.Stderr}, nil)
	if err == nil && (r.Status != "exited" || n != bulkBytes) {
		err = fmt.Errorf("%s after %d bytes", r.Status, n)
	}
	return time.Since(start), err
}

// bareEcho sends lines to a program and waits for each to come back. By default the kernel puts both on one core, where a round
// trip takes a tenth of the time; that is impossible with a third program in between.
func bareEcho(ctx context.Context, apart bool) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, "cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	bounce := bounce
	if apart {
		bounce = func(in io.Writer, out io.Reader) (time.Duration, error) { return bounceApart(cmd.Process.Pid, in, out) }
	}
	elapsed, err := bounce(in, out)
	in.Close()
	return elapsed, errors.Join(err, cmd.Wait())
}

// bounceApart bounces between this process on one core and the other process on the next.
func bounceApart(pid int, in io.Writer, out io.Reader) (elapsed time.Duration, err error) {
	var all, here, there unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return 0, err
	}
	for cpu := 0; there.Count() == 0; cpu++ {
		switch {
		case cpu >= len(all)*64:
			return 0, errors.New("two cores are needed")
		case !all.IsSet(cpu):
		case here.Count() == 0:
			here.Set(cpu)
		default:
			there.Set(cpu)
		}
	}
	defer func() { err = errors.Join(err, pin(os.Getpid(), &all)) }()
	if err := errors.Join(pin(os.Getpid(), &here), pin(pid, &there)); err != nil {
		return 0, err
	}
	return bounce(in, out)
}

// pin restricts all threads of a process to some cores.
func pin(pid int, cores *unix.CPUSet) error {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		id, _ := strconv.Atoi(task.Name()) // a number
		err = errors.Join(err, unix.SchedSetaffinity(id, cores))
	}
	return err
}

// bounce returns the median round trip time.
func bounce(in io.Writer, out io.Reader) (time.Duration, error) {
	line := append(bytes.Repeat([]byte("x"), 63), '\n')
	back := make([]byte, len(line))
	var times []time.Duration
	for n := range echoFirst + echoLines {
		start := time.Now()
		if _, err := in.Write(line); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(out, back); err != nil {
			return 0, err
		}
		if n >= echoFirst {
			times = append(times, time.Since(start))
		}
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

func streamEcho(ctx context.Context, c *client.Client) (time.Duration, error) {
	in, feed := io.Pipe()
	back, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := c.ExecStream(ctx, "bench", &api.ExecRequest{Argv: []string{"cat"}}, client.Stdio{Stdin: in, Stdout: out, Stderr: os.Stderr}, nil)
		out.CloseWithError(err)
		done <- err
	}()
	elapsed, err := bounce(feed, back)
	feed.Close()
	return elapsed, errors.Join(err, <-done)
}

// direct runs a program whose stdio descriptors are passed to use, and ends it.
func direct(ctx context.Context, c *client.Client, req *api.ProcessRequest, use func(files [3]*os.File) (time.Duration, error)) (time.Duration, error) {
	const name = "direct"
	req.Stdio = name
	if _, _, err := c.StartProcess(ctx, "bench", name, req); err != nil {
		return 0, err
	}
	files, err := c.Stdio(ctx, "bench", name)
	if err != nil {
		return 0, errors.Join(err, c.DeleteProcess(ctx, "bench", name))
	}
	elapsed, err := use(files)
	for _, f := range files {
		f.Close()
	}
	return elapsed, errors.Join(err, c.DeleteProcess(ctx, "bench", name))
}

func directBulk(ctx context.Context, c *client.Client) (time.Duration, error) {
	start := time.Now()
	return direct(ctx, c, &api.ProcessRequest{Command: new(bulkScript)}, func(files [3]*os.File) (time.Duration, error) {
		err := all(files[1])
		return time.Since(start), err
	})
}

func directEcho(ctx context.Context, c *client.Client) (time.Duration, error) {
	return direct(ctx, c, &api.ProcessRequest{Argv: []string{"cat"}}, func(files [3]*os.File) (time.Duration, error) {
		return bounce(files[0], files[1])
	})
}

// idle measures the memory of idle boxes: PSS of each PID 1, and of keeper and zygote.
func (b *bench) idle(ctx context.Context, to io.Writer, c *client.Client) error {
	var total int64
	var pids []uint32
	for n := range idleBoxes {
		s, _, err := c.CreateSession(ctx, &api.SessionRequest{ID: "idle" + strconv.Itoa(n)})
		if err != nil {
			return err
		}
		pids = append(pids, s.PID)
	}
	for _, pid := range pids {
		kib, err := pss(int(pid))
		if err != nil {
			return err
		}
		total += kib
	}
	fmt.Fprintf(to, "\nidle: PID 1 of a box has %d KiB (PSS), the mean of %d\n", total/idleBoxes, idleBoxes)
	return nil
}

func pss(pid int) (int64, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "smaps_rollup"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "Pss:"); ok {
			return strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		}
	}
	return 0, errors.New("no PSS in smaps_rollup")
}
