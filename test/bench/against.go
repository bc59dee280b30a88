// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/relay/api"
)

// binaries are the programs of one commit.
type binaries struct{ label, dir string }

// bins returns the binaries of this tree and, if any, of the commit to compare with.
func (b *bench) bins() []binaries {
	list := []binaries{{"boxd", b.bin}}
	if b.other.dir != "" {
		list = append(list, b.other)
	}
	return list
}

// buildOther builds the programs of a commit, in a worktree of its own.
func (b *bench) buildOther(ctx context.Context, rev string) error {
	tree := filepath.Join(b.dir, "tree")
	remove, err := checkOut(ctx, rev, tree)
	if err != nil {
		return err
	}
	defer remove()
	b.other = binaries{"boxd at " + rev, filepath.Join(b.dir, "other")}
	return build(ctx, tree, b.other.dir, nil)
}

// otherCases measures the cases that are measured with the other commit too.
func (b *bench) otherCases(ctx context.Context) error {
	c, err := b.startDaemonOf(ctx, b.other.dir, "v", 1, "")
	if err != nil {
		return err
	}
	if _, _, err := c.CreateSession(ctx, &api.SessionRequest{ID: "bench"}); err != nil {
		return err
	}
	execute, err := b.blockingClient(ctx, "v", execRequest("bench"))
	if err != nil {
		return err
	}
	cycle, err := b.blockingClient(ctx, "v", createRequest, execRequest("cycle"), deleteRequest)
	if err != nil {
		return err
	}
	b.add(b.other.label+": exec in a live session, client in C", execute)
	b.add(b.other.label+": the same, each of "+strconv.Itoa(inARow)+" without a pause", backToBack(execute))
	b.add(b.other.label+": create + exec + delete, client in C", cycle)
	return nil
}

// stopLast ends the daemon that was started last.
func (b *bench) stopLast() {
	cmd := b.daemons[len(b.daemons)-1]
	b.daemons = b.daemons[:len(b.daemons)-1]
	_ = cmd.Process.Signal(unix.SIGINT)
	_ = cmd.Wait()
}

// head describes what is measured, and where.
func (b *bench) head(ctx context.Context, p *page, rounds int) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	release, _, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), "-") // the rest names the distribution's build
	commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return fmt.Errorf("which commit this is: %w", err)
	}
	p.printf("# Benchmark\n\nWritten by `make bench`, of commit %s", firstLine(commit))
	if b.other.dir != "" {
		p.printf(", beside %s", b.other.label)
	}
	p.printf(": every case once in each of %d rounds, in random order; peers that take long in fewer. Ratios are of lower quartiles, to that of the floor: vfork, exec and wait of %s, timed in C. "+
		"Nothing else is to run meanwhile. %d processors, Linux %s, %s.\n", rounds, program, runtime.NumCPU(), release, runtime.GOARCH)
	for _, list := range []struct {
		what  string
		items []string
	}{{"Peers", b.versions}, {"Left out", b.left}} {
		if len(list.items) > 0 {
			p.printf("\n%s: %s.\n", list.what, strings.Join(list.items, "; "))
		}
	}
	return nil
}

// growth measures how times grow with sessions, output and clients.
func (b *bench) growth(ctx context.Context, p *page, sessions, sizes string, rates bool) error {
	time.Sleep(settle)
	counts, err := numbers(sessions)
	if err == nil && len(counts) > 0 {
		err = b.growSessions(ctx, p, counts)
	}
	if err != nil {
		return err
	}
	if counts, err = numbers(sizes); err == nil && len(counts) > 0 {
		err = b.growOutput(ctx, p, counts)
	}
	if err == nil && rates {
		err = b.rates(ctx, p)
	}
	return err
}

func numbers(list string) (values []int, err error) {
	for text := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' }) {
		n, err := strconv.Atoi(text)
		if err != nil || n <= 0 {
			return nil, fmt.Errorf("%q: must be a number above 0", text)
		}
		values = append(values, n)
	}
	return values, nil
}

// failures reports which cases have failed, and why: a failing case would look fast.
func failures(cases []*measure) error {
	var errs []error
	for _, m := range cases {
		if m.err != nil {
			errs = append(errs, fmt.Errorf("%s: %d failed, the last: %w", m.name, m.failed, m.err))
		}
	}
	return errors.Join(errs...)
}
