// SPDX-License-Identifier: Apache-2.0

// Command boxkeeper is the small root process that starts boxes for boxd.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/boxd-dev/boxd/cgroup/tree"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation/keeper"
)

// boxdSocket is the descriptor of the connection to boxd.
const boxdSocket = 3

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "boxkeeper: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case keeper.HoldCommand:
			_, err := io.Copy(io.Discard, os.Stdin)
			return err
		case keeper.ZygoteCommand:
			return keeper.Zygote(args[1:])
		case tree.AnchorCommand:
			return tree.Anchor(log.New(os.Stderr, "boxkeeper: ", 0))
		}
	}
	cfg, err := parse(args)
	if err != nil {
		return err
	}
	conn, err := fdpass.FromFD(boxdSocket, fdpass.MaxInline)
	if err != nil {
		return fmt.Errorf("connection to boxd on descriptor %d: %w (boxd starts boxkeeper)", boxdSocket, err)
	}
	// Boxes end when boxd closes the connection, in order; a Ctrl-C meant for boxd must not come first.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	k, err := keeper.New(cfg, conn)
	if err != nil {
		return err
	}
	return k.Serve()
}

// parse reads the keeper's configuration from its flags: they come from root, and a configuration
// file would need a parser here that links far more than the keeper may (arch_test.go).
func parse(args []string) (keeper.Config, error) {
	cfg := keeper.Config{Log: log.New(os.Stderr, "boxkeeper: ", 0)}
	f := flag.NewFlagSet("boxkeeper", flag.ContinueOnError)
	f.StringVar(&cfg.StateDir, "state", "", "state directory of boxd, mode 0700")
	f.StringVar(&cfg.BoxInit, "boxinit", "", "path of the boxinit program")
	f.StringVar(&cfg.IDLock, "id-lock", "", "file that reserves id ranges on this host")
	f.StringVar(&cfg.Group, "group", "", "control group that boxd may make groups in, an absolute path")
	f.Uint64Var(&cfg.Store, "store", 0, "bytes of the store of workspaces, where the state directory has no quotas")
	f.IntVar(&cfg.Ahead, "ahead", 1, "boxes to clone ahead of need")
	f.Func("id-base", "first host id of the boxes' ranges", uint32Into(&cfg.IDBase))
	f.Func("id-count", "number of ranges", uint32Into(&cfg.IDCount))
	f.Func("etc", "what of /etc boxes see; may be repeated", func(s string) error {
		cfg.Host.Etc = append(cfg.Host.Etc, s)
		return nil
	})
	f.Func("allow", "mount source rule, path or path=uid:gid; may be repeated", func(s string) error {
		rule, err := keeper.ParseAllowRule(s)
		cfg.Allow = append(cfg.Allow, rule)
		return err
	})
	if err := f.Parse(args); err != nil {
		return cfg, err
	}
	if f.NArg() > 0 || cfg.StateDir == "" || cfg.BoxInit == "" || cfg.IDLock == "" {
		return cfg, errors.New("-state, -boxinit and -id-lock are required, and nothing but flags is taken")
	}
	return cfg, nil
}

func uint32Into(p *uint32) func(string) error {
	return func(s string) error {
		n, err := strconv.ParseUint(s, 10, 32)
		*p = uint32(n)
		return err
	}
}
