// SPDX-License-Identifier: Apache-2.0

// Command boxkeeper is the privileged half of boxd: it starts boxes for boxd, which decides.
//
// It takes plain data over one socket, checks it against its own root-owned configuration, and never parses JSON, HTTP or
// archives.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/disk"
	"github.com/boxd-dev/boxd/isolation/mounts"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "boxkeeper: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case isolation.HoldCommand:
			_, err := io.Copy(io.Discard, os.Stdin)
			return err
		case zygoteCommand:
			return runHostZygote(args[1:])
		case zygoteImageCommand:
			return runImageZygote()
		case mounts.WorkerCommand:
			return mounts.RunWorker(args[1:])
		case liftCommand:
			return lift(args[1:])
		case anchorCommand:
			return anchor(log.New(os.Stderr, "boxkeeper: ", 0))
		}
	}
	cfg, err := parse(args)
	if err != nil {
		return err
	}
	// Boxes end in order when boxd says so; a Ctrl-C meant for boxd must not come first. boxd may
	// also have gone together with the reader of the log.
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	k, err := newKeeper(cfg)
	if err != nil {
		return err
	}
	return k.serve(ctx)
}

// liftCommand is run when the package is purged, or by root.
const liftCommand = "lift"

// lift removes the quotas that keepers have set on directories of the host. No keeper may be
// running, and the boxes must have been ended.
func lift(args []string) error {
	if len(args) != 1 || !filepath.IsAbs(args[0]) {
		return errors.New("lift takes the state directory of boxd")
	}
	return disk.RemoveHostQuotas(args[0], log.New(os.Stderr, "boxkeeper: ", 0))
}

// parse parses the keeper's configuration from its flags: they come from root, and a
// configuration file would need a parser that links far more than the keeper may (test/arch).
func parse(args []string) (config, error) {
	cfg := config{Log: log.New(os.Stderr, "boxkeeper: ", 0)}
	f := flag.NewFlagSet("boxkeeper", flag.ContinueOnError)
	f.StringVar(&cfg.RunDir, "run", "", "directory for the socket of boxkeeper and the state of running boxes")
	f.StringVar(&cfg.StateDir, "state", "", "state directory of boxd")
	f.StringVar(&cfg.BoxInit, "boxinit", "", "path of the boxinit program")
	f.StringVar(&cfg.IDLock, "id-lock", "", "file that reserves id ranges on this host")
	f.StringVar(&cfg.Group, "group", "", "absolute path of the cgroup for boxes, delegated to boxd")
	f.Uint64Var(&cfg.Store, "store", 0, "size in bytes of the workspace store, used if the state directory has no project quotas")
	f.StringVar(&cfg.StoreFilesystem, "store-filesystem", isolation.StoreExt4, "filesystem of a new store: ext4 or xfs")
	f.IntVar(&cfg.Workspaces, "workspaces", 0, "maximum workspaces, named ones and images included; 0: unlimited")
	f.IntVar(&cfg.Ahead, "ahead", 1, "boxes to start in advance")
	f.DurationVar(&cfg.Patience, "patience", 0, "time limit for the filesystem of a mount source to answer; 0: the default of some seconds")
	f.BoolVar(&cfg.AIO, "aio", false, "allow io_setup(2) in boxes; fs.aio-max-nr is shared with the host")
	f.IntVar(&cfg.FileLocks, "file-locks", 0, "maximum file locks; a box with more is ended; 0: unlimited")
	f.BoolVar(&cfg.Linger, "linger", false, "keep running without boxd and boxes")
	f.Func("boxd-uid", "uid of boxd", uint32Into(&cfg.BoxdUID))
	f.Func("boxd-gid", "its gid", uint32Into(&cfg.BoxdGID))
	f.Func("id-base", "first host uid and gid for boxes", uint32Into(&cfg.IDBase))
	f.Func("id-count", "number of id ranges, one per box", uint32Into(&cfg.IDCount))
	f.Func("etc", "path below /etc that boxes can read (repeatable)", into(&cfg.Etc))
	f.Func("network", "setting of box networks: addresses, DNS servers or allowed names (repeatable)", into(&cfg.Network))
	f.Func("quota-root", "host directory below which mount sources can have quotas (repeatable)", into(&cfg.QuotaRoots))
	f.Func("allow", "allowed mount source, PATH or PATH=UID:GID (repeatable)", into(&cfg.Allow))
	if err := f.Parse(args); err != nil {
		return cfg, err
	}
	if f.NArg() > 0 || cfg.RunDir == "" || cfg.StateDir == "" || cfg.BoxInit == "" || cfg.IDLock == "" {
		return cfg, errors.New("-run, -state, -boxinit and -id-lock are required; other arguments are not allowed")
	}
	return cfg, nil
}

func into(list *[]string) func(string) error {
	return func(s string) error {
		*list = append(*list, s)
		return nil
	}
}

func uint32Into(p *uint32) func(string) error {
	return func(s string) error {
		n, err := strconv.ParseUint(s, 10, 32)
		*p = uint32(n)
		return err
	}
}
