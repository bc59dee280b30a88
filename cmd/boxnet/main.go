// SPDX-License-Identifier: Apache-2.0

// Command boxnet is the part of boxkeeper that has the network of boxes: links, addresses, firewall tables.
//
// boxkeeper starts it and asks it over one socket; each request comes with the network namespace of the box that it is
// about. It has the capabilities for that and no others. It links the libraries for netlink and nf_tables, which boxkeeper,
// with all its capabilities, does not.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/network"
	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// keptCapabilities are those for links, rules and sysctls of a network (NET_ADMIN), for entering that of a box (SYS_ADMIN)
// and for listening there at port 53 (NET_BIND_SERVICE).
const keptCapabilities = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_BIND_SERVICE

// lockTimeout is longer than the keeper waits for the end of the process.
const lockTimeout = 30 * time.Second

func main() {
	logger := log.New(os.Stderr, "boxnet: ", 0)
	if err := run(os.Args[1:], logger); err != nil {
		logger.Print(err)
		os.Exit(1)
	}
}

func run(args []string, logger *log.Logger) error {
	if len(args) > 0 && args[0] == sweepCommand {
		return sweep(args[1:], logger)
	}
	cfg, err := parse(args)
	if err != nil {
		return err
	}
	// It ends with its socket, in order, and not by a signal that was meant for the keeper or boxd.
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM)
	lock, err := only(cfg.Run) // with all of root's rights, as its directory may be in one of another user
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := linux.KeepCapabilities(keptCapabilities); err != nil {
		return err
	}
	h := network.New(cfg, logger)
	err = serve(h)
	if h.Close() {
		err = errors.Join(err, lock.Truncate(0))
	}
	return err
}

// parse parses the flags, which the keeper has from root.
func parse(args []string) (rule.Config, error) {
	f := flag.NewFlagSet("boxnet", flag.ContinueOnError)
	dir := f.String("run", "", "run directory of the keeper")
	var words []string
	f.Func("network", "setting of box networks (repeatable)", func(s string) error {
		words = append(words, s)
		return nil
	})
	if err := f.Parse(args); err != nil {
		return rule.Config{}, err
	}
	if f.NArg() > 0 || !filepath.IsAbs(*dir) {
		return rule.Config{}, errors.New("-run must be an absolute path; other arguments are not allowed")
	}
	return rule.ParseConfig(*dir, words)
}

// sweepCommand is run when the package is removed.
const sweepCommand = "sweep"

// sweep removes what a keeper has left in the host's network for boxes that outlive it: its table, and links. The boxes
// must have been ended.
func sweep(args []string, logger *log.Logger) error {
	if len(args) != 1 || !filepath.IsAbs(args[0]) {
		return errors.New("sweep takes the run directory of the keeper")
	}
	_, err := network.New(rule.Config{Run: args[0]}, logger).Adopt(nil)
	return err
}

// only waits until the process of an earlier keeper has ended, which may have a request to finish, and keeps later ones out. The
// file that it locks is empty while nothing of boxes is in the network of the host.
func only(run string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(run, isolation.KeeperDir, isolation.NetworkLock), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	if err = linux.Lock(int(f.Fd()), lockTimeout); err != nil {
		err = fmt.Errorf("the process of an earlier keeper has not ended: %w", err)
	} else {
		_, err = f.WriteAt([]byte("in use\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
