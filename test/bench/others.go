// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// Users in the crowd, and outside it. Only the default policy applies to either.
const (
	crowdUID  = 4242
	quietUID  = 4243
	otherGID  = 65534
	turnExecs = 20 // executions of the quiet user in a turn
	crowdWarm = 300 * time.Millisecond
)

// dialAs connects to a socket as a user: the kernel records a thread's ids when it connects.
func dialAs(socket string, uid uint32) (conn net.Conn, err error) {
	done := make(chan struct{})
	go func() { // a thread with changed ids ends with its goroutine
		defer close(done)
		runtime.LockOSThread()
		_, _, e1 := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
		_, _, e2 := unix.RawSyscall(unix.SYS_SETRESGID, otherGID, otherGID, otherGID)
		_, _, e3 := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
		if e1 != 0 || e2 != 0 || e3 != 0 {
			err = fmt.Errorf("become another user: %w, %w, %w", e1, e2, e3)
			return
		}
		conn, err = net.Dial("unix", socket)
	}()
	<-done
	return conn, err
}

// bareClientOf returns a bare client connected as a user.
func bareClientOf(socket string, uid uint32) (*bareClient, error) {
	conn, err := dialAs(socket, uid)
	if err != nil {
		return nil, err
	}
	return &bareClient{conn: conn, in: bufio.NewReader(conn)}, nil
}

// open lets all users of the host reach a daemon's socket.
func (b *bench) open(name string) (socket string, err error) {
	socket = filepath.Join(b.dir, name, "s")
	return socket, errors.Join(os.Chmod(b.dir, 0o711), os.Chmod(filepath.Join(b.dir, name), 0o711), os.Chmod(socket, 0o666))
}

func crowdSession(n int) string { return "crowd" + strconv.Itoa(n) }

// crowd runs many clients of one user, each with a session in which it makes one execution after the other. It lasts until EOF on
// standard input, and prints the number of executions.
func crowd(socket string, clients int) error {
	var count atomic.Int64
	failed := make(chan error, clients)
	var ready sync.WaitGroup
	for n := range clients {
		c, err := bareClientOf(socket, crowdUID)
		if err != nil {
			return err
		}
		ready.Add(1)
		go func() { // ends with the program
			err := c.exec(crowdSession(n))
			for ready.Done(); err == nil; err = c.exec(crowdSession(n)) {
				count.Add(1)
			}
			failed <- err
		}()
	}
	ready.Wait()
	fmt.Println("ready")
	start := time.Now()
	done := make(chan error, 1)
	count.Store(0)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		done <- err
	}()
	select {
	case err := <-failed:
		return err
	case err := <-done:
		fmt.Println(int(float64(count.Load()) / time.Since(start).Seconds()))
		return err
	}
}

// others measures how long one user waits for an execution while a crowd of another is as busy as possible, alternating with the
// same without a crowd. Boxes, boxd and both users share the cores of this machine.
func (b *bench) others(ctx context.Context, to io.Writer, turns, clients int) error {
	if _, err := b.startDaemon(ctx, "o", 1, ""); err != nil {
		return err
	}
	socket, err := b.open("o")
	if err != nil {
		return err
	}
	many, err := bareClientOf(socket, crowdUID)
	if err != nil {
		return err
	}
	for n := range clients {
		if err := many.expect("/v1/sessions", `{"id":"`+crowdSession(n)+`"}`, `"state":"ready"`); err != nil {
			return err
		}
	}
	quiet, err := bareClientOf(socket, quietUID)
	if err == nil {
		err = quiet.expect("/v1/sessions", `{"id":"quiet"}`, `"state":"ready"`)
	}
	if err != nil {
		return err
	}
	var alone, beside []time.Duration
	var ratios []float64
	var rate int
	for range turns {
		a, err := turn(ctx, quiet)
		if err != nil {
			return err
		}
		var c []time.Duration
		r, err := withCrowd(ctx, socket, clients, func() (err error) {
			c, err = turn(ctx, quiet)
			return err
		})
		if err != nil {
			return err
		}
		alone, beside, rate = append(alone, a...), append(beside, c...), max(rate, r)
		ratios = append(ratios, float64(median(c))/float64(median(a)))
	}
	slices.Sort(ratios)
	out := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(out, "exec of a user\tn\tmin µs\tmedian µs\tp99 µs\tratio\t\n")
	for _, w := range [][]time.Duration{alone, beside} {
		name := "alone"
		if &w[0] == &beside[0] {
			name = fmt.Sprintf("beside %d clients of another user", clients)
		}
		m := median(w)
		fmt.Fprintf(out, "%s\t%d\t%d\t%d\t%d\t%.2f\t\n", name, len(w), w[0].Microseconds(), m.Microseconds(), w[len(w)*99/100].Microseconds(), float64(m)/float64(median(alone)))
	}
	if err := out.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(to, "ratios of the turns: %.2f; executions of the others in a second: %d at most\n", ratios, rate)
	return nil
}

// turn measures a series of executions with pauses between them.
func turn(ctx context.Context, c *bareClient) ([]time.Duration, error) {
	times := make([]time.Duration, turnExecs)
	for n := range times {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		elapsed, err := timed(func() error { return c.exec("quiet") })()
		if err != nil {
			return nil, err
		}
		times[n] = elapsed
		time.Sleep(settle)
	}
	return times, nil
}

// median also sorts times.
func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// withCrowd runs do while a crowd, which is another process, is at work, and returns the crowd's executions per second.
func withCrowd(ctx context.Context, socket string, clients int, do func() error) (rate int, err error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-crowd", strconv.Itoa(clients), "-socket", socket)
	cmd.Stderr = os.Stderr
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
	lines := bufio.NewReader(out)
	if _, err = lines.ReadString('\n'); err == nil {
		time.Sleep(crowdWarm)
		err = do()
	}
	in.Close()
	text, rerr := lines.ReadString('\n')
	if rerr == nil {
		rate, rerr = strconv.Atoi(strings.TrimSpace(text))
	}
	time.Sleep(crowdWarm) // its remaining work is over
	return rate, errors.Join(err, rerr, cmd.Wait())
}
