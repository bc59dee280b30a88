// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/isolation/egress"
	"github.com/boxd-dev/boxd/supervisor/driver"
)

// A box that was stopped and cannot have its names resolved keeps its files; of a new one nothing remains.
func TestABoxWithoutNamesKeepsItsFiles(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{true, false} {
		run := t.TempDir()
		if err := os.Mkdir(filepath.Join(run, isolation.KeeperDir), 0o700); err != nil {
			t.Fatal(err)
		}
		cfg := client.KeeperConfig{KeeperConfig: isolation.KeeperConfig{RunDir: run}, External: true, Log: slog.New(slog.DiscardHandler)}
		ended := make(chan bool, 1)
		playKeeper(t, run, &isolation.Greeting{Version: isolation.KeeperVersion, Flags: cfg.Flags()}, ended)
		k, err := client.StartKeeper(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		d := driver.Direct(k)
		d.Resolve(func(context.Context) (*fdpass.Conn, error) {
			conn, peer, err := fdpass.Pair(fdpass.MaxInline)
			t.Cleanup(func() { unix.Close(peer) })
			return conn, err
		}, []netip.Addr{}, func(*egress.Denied) {}, slog.New(slog.DiscardHandler))
		spec := &isolation.Spec{Key: "k", Resume: again, Network: isolation.NetworkSpec{Kind: isolation.NetworkEgress, NamesOnly: true}}
		if _, err := d.Launch(t.Context(), spec); err == nil {
			t.Error("no error though the box cannot start")
		}
		if removed := <-ended; removed == again {
			t.Errorf("its files are removed: %v, although it was stopped before: again = %v, want removed != again",
				removed, again)
		}
		d.StopResolving()
		k.Detach()
	}
}

// playKeeper plays a keeper that starts every box, opens no sockets, and tells whether the files of a box that it ends are to go too.
func playKeeper(t *testing.T, run string, hello *isolation.Greeting, ended chan<- bool) {
	t.Helper()
	dir, err := os.Open(filepath.Join(run, isolation.KeeperDir))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	fd, err := fdpass.Bind(int(dir.Fd()), isolation.KeeperSocket)
	if err != nil {
		t.Fatal(err)
	}
	l, err := fdpass.NewListener(fd)
	if err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the connection
		defer l.Close()
		fd, err := l.Accept()
		if err != nil {
			return
		}
		conn, err := fdpass.FromFD(fd, fdpass.MaxInline)
		if err != nil {
			return
		}
		defer conn.Close()
		for {
			body, _, err := conn.Recv(true)
			if err != nil {
				return
			}
			number, req, err := isolation.DecodeKeeperRequest(body)
			if err != nil {
				return
			}
			var reply isolation.KeeperReply = isolation.NewStepError(isolation.StepNetwork, "sockets", unix.EIO)
			var files []int
			switch m := req.(type) {
			case *isolation.Hello:
				reply = hello
			case *isolation.Launch:
				ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
				if err != nil || fdpass.Send(ends[1], (&isolation.BoxReply{Ready: true}).Encode()) != nil {
					return
				}
				defer unix.Close(ends[1])
				pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
				if err != nil {
					return
				}
				reply, files = &isolation.Launched{PID: 1}, []int{ends[0], pidfd}
			case *isolation.EndBox:
				ended <- m.RemoveWork
				reply = &isolation.Done{}
			}
			_ = conn.Send(isolation.EncodeKeeperReply(number, reply), files...)
			fdpass.CloseAll(files)
		}
	}()
}
