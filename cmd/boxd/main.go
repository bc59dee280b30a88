// SPDX-License-Identifier: Apache-2.0

// Command boxd is the sandbox supervisor, which serves the API of sessions.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/relay"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/systemd"
)

// version is set by the linker.
var version = "devel"

const (
	// greetPatience includes the end of an earlier keeper, and the making of the store.
	greetPatience = time.Minute
)

func main() {
	_ = linux.SetTimerSlack(linux.TimerSlack) // if it fails, boxd only wakes up more often
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "boxd: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("boxd", flag.ContinueOnError)
	path := flags.String("config", "", "configuration `file`; default "+defaultPath+", if it exists")
	check := flags.Bool("check", false, "check the configuration and exit")
	runs := flags.String("against", "", "with -check: report what would change for a running boxd, whose configuration and sessions boxctl config check has written to this `file`")
	show := flags.Bool("version", false, "print the version and exit")
	unit := flags.Bool("keeper-unit", false, "the keeper runs in a unit of its own (boxd-keeper.service)")
	be := flags.Bool("keeper", false, "run that keeper: execute boxkeeper with the configured options")
	scopes := flags.Bool("scopes", false, "create systemd scopes for a boxd that cannot reach the service manager (boxd-scopes.service)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *show {
		fmt.Println("boxd", version) //nolint:forbidigo // what was asked for
		return nil
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: boxd takes flags only", flags.Arg(0))
	}
	if *scopes {
		return serveScopes(ctx)
	}
	required := *path != ""
	if !required {
		*path = defaultPath
	}
	load := func() (Config, error) {
		cfg, err := loadConfig(*path, required, os.Environ())
		if err == nil {
			err = chooseKeeper(&cfg, *unit || *be)
		}
		cfg.Confined = *unit
		return cfg, err
	}
	cfg, err := load()
	if err == nil && *check {
		// Without the credentials: systemd passes them to the service only, not to what it runs for a reload.
		var state *access.State
		if state, err = prepareGate(&cfg, &cfg.Daemon, "", slog.New(slog.NewTextHandler(os.Stderr, nil))); err == nil {
			_, files := trace.NewTracer(&cfg.Traces, trace.Source{}, slog.New(slog.DiscardHandler)) // whose files boxd reads at startup
			err = errors.Join(resolvePolicies(&cfg, state, refuse), fitsNobody(state), files)
		}
		switch {
		case err != nil:
		case *runs != "":
			err = againstFile(&cfg, state, *runs)
		default:
			fmt.Fprintln(os.Stdout, strings.Join(cfg.understood(), "\n"))
		}
		for _, line := range append(cfg.idle(), cfg.unresolved(ctx)...) {
			fmt.Fprintln(os.Stderr, "boxd: without effect:", line)
		}
	}
	if err != nil || *check {
		return err
	}
	if *be {
		return becomeKeeper(&cfg)
	}
	reloads := make(chan os.Signal, 1)
	signal.Notify(reloads, syscall.SIGHUP) // from here on: it would end a starting boxd
	defer signal.Stop(reloads)
	return start(ctx, &cfg, *path, load, reloads)
}

// start opens the log and telemetry, then serves. path is that of the configuration.
func start(ctx context.Context, cfg *Config, path string, load func() (Config, error), reloads <-chan os.Signal) error {
	if cfg.Confined { // without its unit it would confine the keeper that it starts, with its boxes
		if err := confine(ctx, cfg, path); err != nil || ctx.Err() != nil {
			return err
		}
	}
	seen, err := openNotes(cfg)
	if err != nil {
		return err
	}
	return serve(ctx, cfg, seen, load, reloads)
}

// serve builds the parts from the bottom up, serves until ctx ends, and takes them down in reverse.
func serve(ctx context.Context, cfg *Config, seen *notes, load func() (Config, error), reloads <-chan os.Signal) error {
	log := seen.log
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	var beside sync.WaitGroup // continues until all else has ended
	defer beside.Wait()
	defer end()
	lock, err := lockState(cfg.Daemon.StateDir, linux.StartPatience)
	if err != nil {
		return err
	}
	defer lock.Close()
	in, err := openFront(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := seen.openRecords(life, cfg, &beside); err != nil {
		return err
	}
	defer seen.Audit.Close()
	run, err := lockRun(cfg.Daemon.RuntimeDir, linux.StartPatience)
	if err != nil {
		return err
	}
	defer run.Close()
	keeper, err := startKeeper(ctx, cfg, log)
	if err != nil {
		return err
	}
	keepBoxes := cfg.Daemon.OnStop == onStopKeep
	defer func() { //nolint:contextcheck // boxes end after ctx
		if keepBoxes {
			keeper.Detach()
		} else if err := keeper.Close(); err != nil {
			log.Warn("cannot end the keeper", "error", err)
		}
	}()
	boxes, supervising, closeBoxes := openBoxes(ctx, cfg, keeper, seen)
	defer closeBoxes()
	store, sup, end, err := openSupervisor(ctx, cfg, in, boxes, seen, keepBoxes)
	if err != nil {
		keepBoxes = true // living boxes belong to an earlier boxd, for the next one
		return err
	}
	supervising.Store(sup)
	defer end()
	sweep(ctx, in, store, log) // restored sessions keep theirs
	seen.begin(ctx, cfg, sup, store, boxes)
	reload := newReloader(load, applyTo(sup, in.gate, cfg, log), cfg, log, seen.Events)
	seen.Waived, seen.Refused = in.waived(cfg), sup.Refused
	server := relay.New(relay.Config{Version: version, Telemetry: seen.Telemetry, Gate: in.gate, Skills: in.skills, Drives: in.drives, Previews: in.previews, Images: store, IdleExit: in.idleExit(cfg), Fleet: in.sockets.Fleet, E2B: in.makeE2B(cfg, seen, sup), LangBot: in.makeLangBot(cfg, seen, sup), HTTPS: in.https, TLS: in.ours, Settings: reload.settings}, sup, log)
	if err := systemd.Ready(); err != nil {
		return err
	}
	beside.Go(func() { in.drives.Run(life) })
	beside.Go(func() { reload.run(life, reloads) })
	beside.Go(func() { watch(life, ctx, server.Check, log) })
	leave := in.others(ctx, seen)
	err = server.Serve(ctx, in.sockets.API, in.sockets.HTTP...)
	leave()
	seen.Events.Add(context.WithoutCancel(ctx), events.Event{Type: events.DaemonStopping, Detail: leftBehind(len(sup.Sessions(access.Principal{}, true)), keepBoxes)})
	return errors.Join(err, systemd.Stopping())
}

// leftBehind says what a stopping boxd leaves running, and how to end it: without a unit the user would not see it.
func leftBehind(boxes int, keepBoxes bool) string {
	if !keepBoxes {
		return ""
	}
	const rest = `the keeper keep running for the next boxd (daemon.on_stop = "keep"); to end them, start it with on_stop = "end" and stop it`
	switch boxes {
	case 0:
		return `the keeper keeps running for the next boxd (daemon.on_stop = "keep")`
	case 1:
		return "1 box and " + rest
	default:
		return strconv.Itoa(boxes) + " boxes and " + rest
	}
}

// watch notifies the service manager's watchdog until ctx ends. While serving ends, which may take long, health is not
// checked: TimeoutStopSec= limits that.
func watch(ctx, serving context.Context, check func(context.Context) error, log *slog.Logger) {
	err := systemd.Watchdog(ctx, func(now context.Context) error {
		if serving.Err() == nil {
			return check(now)
		}
		return nil
	}, log)
	if err != nil {
		log.Error("cannot notify the watchdog of the service manager", "error", err)
	}
}

// lockState makes the state directory and locks out every other boxd, after waiting for one that is ending. Then it makes boxd's own
// directories there.
func lockState(dir string, patience time.Duration) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return nil, fmt.Errorf("state directory %s: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&0o077 != 0 || int(st.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("state directory %s: want mode 0700 and owner uid %d, have %#o and %d", dir, os.Geteuid(), st.Mode&0o7777, st.Uid)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	if err := linux.Lock(int(f.Fd()), patience); err != nil {
		f.Close()
		return nil, fmt.Errorf("state directory %s is in use by another boxd: %w", dir, err)
	}
	if err := makeOwnDirs(dir); err != nil {
		f.Close()
		return nil, fmt.Errorf("state directory: %w", err)
	}
	return f, nil
}

// lockRun makes the keeper's part of the runtime directory and keeps every other boxd from that keeper.
func lockRun(dir string, patience time.Duration) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("runtime directory: %w", err)
	}
	own := filepath.Join(dir, isolation.KeeperDir)
	if err := os.Mkdir(own, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("runtime directory: %w", err)
	}
	f, err := os.OpenFile(own, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("runtime directory: %w", err)
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil && (st.Mode&0o077 != 0 || int(st.Uid) != os.Geteuid()) {
		err = fmt.Errorf("want mode 0700 and owner uid %d, have %#o and %d", os.Geteuid(), st.Mode&0o7777, st.Uid)
	}
	if err != nil { // a user who can write there could pose as the keeper
		f.Close()
		return nil, fmt.Errorf("runtime directory %s: %w", own, err)
	}
	if err := linux.Lock(int(f.Fd()), patience); err != nil {
		f.Close()
		return nil, fmt.Errorf("runtime directory %s is in use by another boxd: %w", dir, err)
	}
	return f, nil
}
