// SPDX-License-Identifier: Apache-2.0

// Command boxd is the sandbox supervisor, which serves the API of sessions.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/relay"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/systemd"
)

// version is set by the linker.
var version = "devel"

// greetTimeout includes the end of an earlier keeper, and the making of the store.
const greetTimeout = time.Minute

func main() {
	_ = linux.SetTimerSlack(linux.TimerSlack) // if it fails, boxd only wakes up more often
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "boxd: %v\n", err)
		os.Exit(1)
	}
}

// options are what boxd is asked to be or do.
type options struct {
	config   string // its path
	required bool   // the configuration was named, and must exist

	show, check, unit              bool
	keeper, scopes, files, prepare bool
	running                        string // the file of -against
	boxdUser                       identity
}

// parse parses the command line.
func parse(args []string) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("boxd", flag.ContinueOnError)
	flags.StringVar(&o.config, "config", "", "configuration `file`; default "+defaultPath+", if it exists")
	flags.BoolVar(&o.check, "check", false, "check the configuration and exit")
	flags.StringVar(&o.running, "against", "", "with -check: report what would change for a running boxd, whose configuration and sessions boxctl config check has written to this `file`")
	flags.BoolVar(&o.show, "version", false, "print the version and exit")
	flags.BoolVar(&o.unit, "keeper-unit", false, "the keeper runs in a unit of its own (boxd-keeper.service)")
	flags.BoolVar(&o.keeper, "keeper", false, "run that keeper: execute boxkeeper with the configured options")
	flags.BoolVar(&o.scopes, "scopes", false, "create systemd scopes for a boxd that cannot reach the service manager (boxd-scopes.service)")
	flags.BoolVar(&o.files, "files", false, "open the files that the configuration names for a boxd that is not root (boxd-files.service)")
	flags.BoolVar(&o.prepare, "prepare", false, "make the directories of a boxd that is not root, and exit; what an earlier boxd has left there becomes its own")
	name := flags.String("user", "", "with -keeper, -scopes, -files and -prepare: the `user` that boxd runs as; default this one")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q: boxd takes flags only", flags.Arg(0))
	}
	if o.required = o.config != ""; !o.required {
		o.config = defaultPath
	}
	var err error
	o.boxdUser, err = userOf(*name)
	return o, err
}

// load reads the configuration.
func (o *options) load() (Config, error) {
	cfg, err := loadConfig(o.config, o.required, os.Environ())
	if err == nil {
		err = chooseKeeper(&cfg, o.unit || o.keeper)
	}
	cfg.Confined = o.unit
	return cfg, err
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	switch {
	case err != nil:
		return err
	case o.show:
		fmt.Println("boxd", version) //nolint:forbidigo // what was asked for
		return nil
	case o.scopes:
		return serveScopes(ctx, o.boxdUser)
	case o.files:
		return serveFiles(ctx, o.boxdUser, o.config, o.load)
	}
	cfg, err := o.load()
	switch {
	case o.check:
		return checkConfig(ctx, &cfg, err, o.running)
	case err != nil:
		return err
	case o.prepare:
		return prepareDirs(&cfg.Daemon, o.boxdUser)
	case o.keeper:
		return becomeKeeper(&cfg, o.boxdUser)
	}
	reloads := make(chan os.Signal, 1)
	signal.Notify(reloads, syscall.SIGHUP) // from here on: it would end a starting boxd
	defer signal.Stop(reloads)
	return start(ctx, &cfg, o.config, o.load, reloads)
}

// checkConfig reports what a configuration, or the error of reading it, comes to. running is the file of -against.
func checkConfig(ctx context.Context, cfg *Config, err error, running string) error {
	if err != nil {
		return err
	}
	// Without the credentials: systemd passes them to the service only, not to what it runs for a reload.
	state, err := prepareGate(cfg, &cfg.Daemon, "", slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err == nil {
		_, files := trace.NewTracer(&cfg.Traces, trace.Source{}, slog.New(slog.DiscardHandler)) // whose files boxd reads at startup
		err = errors.Join(resolvePolicies(cfg, state, refuse), matchesNobody(state), files)
	}
	switch {
	case err != nil:
	case running != "":
		err = againstFile(cfg, state, running)
	default:
		fmt.Fprintln(os.Stdout, strings.Join(cfg.understood(), "\n"))
	}
	for _, line := range append(cfg.idle(), cfg.unresolved(ctx)...) {
		fmt.Fprintln(os.Stderr, "boxd: without effect:", line)
	}
	return err
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
	baseCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup // continues until all else has ended
	defer background.Wait()
	defer cancel()
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
	if err := seen.openRecords(baseCtx, cfg, &background); err != nil {
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
	store, sup, cancel, err := openSupervisor(ctx, cfg, in, boxes, seen, keepBoxes)
	if err != nil {
		keepBoxes = true // living boxes belong to an earlier boxd, for the next one
		return err
	}
	supervising.Store(sup)
	defer cancel()
	sweep(ctx, in, store, log) // restored sessions keep theirs
	seen.begin(ctx, cfg, sup, store, boxes)
	reload := newReloader(load, applyTo(sup, in.gate, cfg, log), cfg, log, seen.Events)
	seen.Waived, seen.Refused = in.waived(cfg), sup.Refused
	server := relay.New(relay.Config{Version: version, Telemetry: seen.Telemetry, Gate: in.gate, Skills: in.skills, Drives: in.drives, Previews: in.previews, Images: store, IdleExit: in.idleExit(cfg), Fleet: in.sockets.Fleet, E2B: in.makeE2B(cfg, seen, sup), LangBot: in.makeLangBot(cfg, seen, sup), HTTPS: in.https, TLS: in.ours, Settings: reload.settings}, sup, log)
	if err := systemd.Ready(); err != nil {
		return err
	}
	background.Go(func() { in.drives.Run(baseCtx) })
	background.Go(func() { reload.run(baseCtx, reloads) })
	background.Go(func() { watch(baseCtx, ctx, server.Check, log) })
	stop := in.others(ctx, seen)
	err = server.Serve(ctx, in.sockets.API, in.sockets.HTTP...)
	stop()
	seen.Events.Add(context.WithoutCancel(ctx), events.Event{Type: events.DaemonStopping, Detail: leftBehind(len(sup.Sessions(access.Principal{}, true)), keepBoxes)})
	return errors.Join(err, systemd.Stopping())
}

// leftBehind says what a stopping boxd leaves running, and how to end it: without a unit the user would not see it.
func leftBehind(boxes int, keepBoxes bool) string {
	if !keepBoxes {
		return ""
	}
	const text = `the keeper keep running for the next boxd (daemon.on_stop = "keep"); to end them, start it with on_stop = "end" and stop it`
	switch boxes {
	case 0:
		return `the keeper keeps running for the next boxd (daemon.on_stop = "keep")`
	case 1:
		return "1 box and " + text
	default:
		return strconv.Itoa(boxes) + " boxes and " + text
	}
}

// watch notifies the service manager's watchdog until ctx ends. While serving ends, which may take long, health is not
// checked: TimeoutStopSec= limits that.
func watch(ctx, serveCtx context.Context, check func(context.Context) error, log *slog.Logger) {
	err := systemd.Watchdog(ctx, func(now context.Context) error {
		if serveCtx.Err() == nil {
			return check(now)
		}
		return nil
	}, log)
	if err != nil {
		log.Error("cannot notify the watchdog of the service manager", "error", err)
	}
}
