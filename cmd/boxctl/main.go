// SPDX-License-Identifier: Apache-2.0

// Command boxctl is the command line for boxes.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/client"

	"github.com/boxd-dev/boxd/relay/render"
)

// version is set by the linker.
var version = "devel"

// Exit codes that are not a program's own. For run and exec exitBoxd is boxd's failure, while 126 and 127 are a shell's
// for a program that cannot be run or does not exist.
const (
	exitFailure    = 1
	exitUsage      = 2
	exitTimeout    = 124 // as timeout(1)
	exitBoxd       = 125
	exitCannotRun  = 126
	exitNotFound   = 127
	exitSignalBase = 128
)

func main() {
	os.Exit(realMain(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// realMain is the program without its process, for tests.
func realMain(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	root := a.root()
	root.SetArgs(joinHere(root, args))
	a.typed = typed{args: args}
	cmd, err := root.ExecuteContextC(context.Background())
	a.typed = typed{cmd, args}
	if e, ok := errors.AsType[*usageError](err); ok && e.command == "" {
		e.command = cmd.CommandPath()
	}
	return a.report(err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "boxctl",
		Short: "Run programs in sandboxes",
		Long: `boxctl runs programs in boxes: sandboxes with their own processes, files, network and limits.
It talks to boxd, the sandbox daemon of this host.

  boxctl run -- python3 -c 'print(6*7)'    run one program in a new box
  boxctl run --here -- make test           the same, with this directory as /workspace
  boxctl shell                             open a shell in a new box
  boxctl create work                       create a box that stays
  boxctl exec work -- make test            run a program in it
  boxctl exec -it work -- bash             open a shell in it
  boxctl start work web -- ./serve         start a background process; see also ps, logs and stop
  boxctl ls                                list boxes; see also top
  boxctl rm work                           remove the box

run and exec exit with the exit code of the program. Other exit codes: 2 wrong usage, 124 timeout,
125 boxd failed, 126 program cannot be run, 127 program not found, 128+N ended by signal N.`,
		Version:           version,
		SilenceUsage:      true,
		SilenceErrors:     true,
		DisableAutoGenTag: true,
	}
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.Args = cobra.ArbitraryArgs // so that an unknown command is a usage mistake
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		return cmd.Help()
	}
	root.SetFlagErrorFunc(flagMistake)
	socket := os.Getenv("BOXD_SOCKET")
	if socket == "" {
		socket = client.DefaultSocket
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.socket, "socket", socket, "`PATH` socket of boxd, or http://127.0.0.1:PORT or https://HOST:PORT; also BOXD_SOCKET")
	a.addTokenFlag(flags)
	flags.StringVar(&a.tls.CA, "tls-ca", os.Getenv("BOXD_TLS_CA"), "`FILE` certificates of CAs for https; also BOXD_TLS_CA (default: those of this host)")
	flags.StringVar(&a.tls.Certificate, "tls-cert", os.Getenv("BOXD_TLS_CERT"), "`FILE` client certificate; also BOXD_TLS_CERT")
	flags.StringVar(&a.tls.Key, "tls-key", os.Getenv("BOXD_TLS_KEY"), "`FILE` its private key, if it is not in the same file; also BOXD_TLS_KEY")
	flags.StringVar(&a.owner, "owner", "", "`OWNER` act on the boxes of another user, for example alice or uid:1000 (operators)")
	flags.BoolVar(&a.json, "json", false, "print JSON")
	root.Flags().BoolP("version", "v", false, "print the version of boxctl")
	root.AddCommand(
		a.runCommand(), a.createCommand(), a.execCommand(), a.lsCommand(), a.inspectCommand(), a.rmCommand(),
		a.startCommand(), a.psCommand(), a.attachCommand(), a.logsCommand(), a.stopCommand(), a.waitCommand(), a.topCommand(), a.shellCommand(),
		a.setCommand(), a.freezeCommand(), a.thawCommand(), a.statusCommand(), a.usageCommand(), a.doctorCommand(), a.versionCommand(),
		a.exportCommand(), a.importCommand(), a.renewCommand(), a.drainCommand(), a.undrainCommand(), a.tokenCommand(), a.grantCommand(), a.revokeCommand(),
	)
	root.AddCommand(a.filesCommands()...)
	root.AddCommand(
		a.mountCommand(), a.umountCommand(), a.forwardCommand(), a.previewCommand(), a.mcpCommand(),
		a.skillCommand(), a.driveCommand(), a.workspaceCommand(), a.snapshotCommand(), a.imageCommand(),
		a.eventsCommand(), a.errorsCommand(), a.auditCommand(), a.e2bCommand(), a.fleetCommand(),
	)
	root.AddCommand(completionCommand(a.stdout), a.configCommand())
	addCompletion(root, a.client)
	correctHelp(root)
	setHelp(root)
	return root
}

// programError is a failure of run or exec that is not the program's.
type programError struct{ error }

func (e programError) Unwrap() error { return e.error }

// report prints an error and returns the exit code.
func (a *app) report(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[exitError](err); ok {
		return int(e)
	}
	if errors.Is(err, client.ErrDetached) {
		return 0 // everything was printed
	}
	if e, ok := errors.AsType[wrongArguments](err); ok {
		fmt.Fprintln(a.stderr, e)
	} else {
		a.printMessage("boxctl", a.typed.sentence(err))
	}
	if hint := a.typed.hint(err); hint != "" {
		a.printMessage("hint", hint)
	}
	if e, ok := errors.AsType[*client.Error](err); ok {
		if line := render.Denial(&e.Problem); line != "" {
			a.printMessage("rule", line)
		}
	}
	switch {
	case errors.As(err, new(*usageError)):
		return exitUsage
	case errors.As(err, new(programError)):
		return exitBoxd
	}
	return exitFailure
}

// hint suggests what to do next, if known.
func (t typed) hint(err error) string {
	if e, ok := errors.AsType[*client.Error](err); ok {
		if e.Field == programFields && t.cmd != nil {
			return t.cmd.CommandPath() + " --help"
		}
		return cmp.Or(t.words(e.Hint), t.otherTarget(&e.Problem))
	}
	if c, ok := errors.AsType[*client.ConnectError](err); ok {
		return render.ConnectHint(c)
	}
	if e, ok := errors.AsType[*usageError](err); ok {
		return cmp.Or(e.hint, cmp.Or(e.command, "boxctl")+" --help")
	}
	return ""
}
