// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/cmd/boxctl/mcphost"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// signals are those that hosts end a server with.
func signals() []os.Signal { return []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} }

// mcpRunCommand returns boxctl mcp run.
func (a *app) mcpRunCommand() *cobra.Command {
	var f sessionFlags
	var from string
	var asIs bool
	var within, greeting, health time.Duration
	cmd := &cobra.Command{
		Use:   "run [flags] [NAME] [-- PROGRAM [ARG...]]",
		Short: "Run another MCP server in a box, on stdin/stdout",
		Long: `run creates a box, runs an MCP server in it, and connects the server to standard input, output and
error. The box is removed when the server ends or its client disconnects. In the configuration of an
MCP host, replace only the command of the server with this one.

The flags of create configure the box; without them it has no network. With --from, the command, its
environment and its directory are read from entry NAME of a file like mcp.json; without --from, NAME
defaults to the name of the program.

If the command belongs to a local project, the directory around its script or virtual environment,
the project is copied to /workspace/project in the box, and the dependencies listed in
requirements.txt, pyproject.toml, setup.py or package.json are installed there. This usually needs
--network egress; variables like PIP_INDEX_URL and NPM_CONFIG_REGISTRY set the source. Paths in the
command are changed to those of the box. The local directory does not change. A project below the
source of a -v mount is used in place, and nothing is installed.`,
		Example: `  boxctl mcp run -v ~/mcp:/opt/mcp:ro files -- node /opt/mcp/server.js
  boxctl mcp run --from ~/.config/mcp.json files`,
		Args: usage(cobra.MinimumNArgs(1)),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if cmd.ArgsLenAtDash() == 0 && from == "" { // without a name
				args = slices.Insert(slices.Clone(args), 0, cmp.Or(nameOf(path.Base(args[0])), "server"))
			}
			server, err := serverOf(from, args)
			if err != nil {
				return err
			}
			req, err := f.request("")
			if err != nil {
				return err
			}
			if dry, err := a.planned(cmd, req); dry || err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), signals()...)
			defer stop()
			plan, err := planOf(server, req, asIs)
			if err != nil {
				return err
			}
			return mcphost.Run(ctx, &mcphost.Options{
				Client: c, Ask: *req, Name: args[0], Plan: plan, Within: within, Greeting: greeting, Health: health, Stdin: a.stdin, Stdout: a.stdout, Stderr: a.stderr,
				Ended: a.recordEnd(args[0]),
			})
		}),
	}
	f.add(cmd)
	cmd.Flags().SetInterspersed(false) // arguments after the name are the server's
	cmd.Flags().BoolVar(&asIs, "as-is", false, "copy no project and rewrite no paths")
	addTime(cmd, &within, "install-timeout", 2*time.Minute, "`TIME` limit for installing dependencies, all attempts together")
	addTime(cmd, &greeting, "start-timeout", 2*time.Minute, "`TIME` limit for the server's answer to the handshake")
	addTime(cmd, &health, "health", 30*time.Second, "`TIME` ping interval; three missed answers end the server, 0s disables it")
	cmd.Flags().StringVar(&from, "from", "", "`FILE` read the command from entry NAME of an mcp.json")
	return cmd
}

// recordEnd stores how a server has failed, or deletes its earlier failures.
func (a *app) recordEnd(name string) func(*mcphost.LastState, error) {
	return func(was *mcphost.LastState, failed error) {
		dir := mcphost.HistoryDir(os.Getenv)
		var err error
		switch failed {
		case nil:
			err = mcphost.ForgetFailures(dir, a.socket, name)
		default:
			err = mcphost.KeepFailure(dir, &mcphost.Failure{
				Socket: a.socket, Name: name, Session: was.Session, Phase: was.Phase, Attempt: was.Attempt, Since: was.Since, Stderr: was.Stderr,
				Ended: time.Now().UTC(), Words: failed.Error(),
			})
		}
		if err != nil {
			fmt.Fprintf(a.stderr, "boxctl: cannot record how the server ended: %v\n", err)
		}
	}
}

// planned prints what would be made, with --dry-run.
func (a *app) planned(cmd *cobra.Command, req *api.SessionRequest) (dry bool, err error) {
	if dry, err = cmd.Flags().GetBool("dry-run"); err != nil || !dry {
		return dry, err
	}
	plan, err := a.client().PlanSession(cmd.Context(), req)
	if err != nil {
		return true, err
	}
	return true, a.printJSON(plan)
}

// serverOf returns the server to run, from the arguments or an entry of a file.
func serverOf(from string, args []string) (*mcphost.Server, error) {
	argv := slices.Clone(args[1:])
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	}
	switch {
	case (from == "") == (len(argv) == 0):
		return nil, &usageError{err: errors.New("give one of: a program with its arguments after --, --from")}
	case from == "":
		return &mcphost.Server{Command: argv[0], Args: argv[1:]}, nil
	}
	f, err := os.Open(from)
	if err != nil {
		return nil, fmt.Errorf("--from: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, mcphost.MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("--from: %w", err)
	}
	server, err := mcphost.FindServer(data, args[0], os.LookupEnv)
	if err != nil {
		return nil, fmt.Errorf("--from %s: %w", from, err)
	}
	return server, nil
}

// planOf returns how the server runs in its box.
func planOf(server *mcphost.Server, req *api.SessionRequest, asIs bool) (*mcphost.Plan, error) {
	if asIs {
		return &mcphost.Plan{Server: *server}, nil
	}
	cwd, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("the directory of boxctl: %w", err)
	}
	home, _ := os.UserHomeDir() // if unknown: "/" alone is no project
	plan := mcphost.MakePlan(&mcphost.ProjectHost{Root: os.DirFS("/"), Cwd: cwd, Home: home}, server, req.Mounts)
	given := maps.Clone(req.Env)
	if given == nil {
		given = map[string]string{}
	}
	maps.Copy(given, plan.Server.Env)
	plan.InstallEnv = mcphost.Indexes(os.Environ(), given)
	return plan, nil
}
