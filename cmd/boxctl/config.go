// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// configCommand returns boxctl config with its subcommands.
func (a *app) configCommand() *cobra.Command {
	return group("config", "Show or check the configuration", "config shows the configuration of boxd, or checks a file before boxd loads it. See box.toml(5).", a.configShowCommand(), a.configCheckCommand())
}

func (a *app) configShowCommand() *cobra.Command {
	var changed bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show each key, its value and where it was set",
		Long: `show prints every key of the configuration that boxd uses, its value, and where it was set: the file
and line, or the environment variable (BOXD__TABLE__KEY). It needs the operator role. Variables set
for programs in [env] are listed without their values.`,
		Args: usage(cobra.NoArgs),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			list, err := c.Configuration(cmd.Context())
			if err != nil {
				return err
			}
			if changed {
				var some []api.Setting
				for _, s := range list.Settings {
					if s.Origin != api.OriginBuiltIn {
						some = append(some, s)
					}
				}
				list.Settings = some
			}
			return a.answer(list, nil, func() error { return render.Configuration(a.stdout, &list) })
		}),
	}
	cmd.Flags().BoolVar(&changed, "changed", false, "show only keys that differ from the built-in defaults")
	return cmd
}

func (a *app) configCheckCommand() *cobra.Command {
	var running bool
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a configuration file",
		Long: `check reads a configuration as boxd would, with its drop-ins and environment variables, and reports
errors. Without FILE it checks /etc/boxd/box.toml, if that exists. Nothing is started.

With --against-running it compares the configuration with that of the running boxd: it lists what
would change, which users would lose access, and which boxes would end.`,
		Args: usage(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			program, err := daemonProgram()
			if err != nil {
				return err
			}
			flags := []string{"-check"}
			if len(args) > 0 {
				flags = append(flags, "-config", args[0])
			}
			if running {
				flags = append(flags, "-against", "/dev/stdin")
			}
			check := exec.CommandContext(cmd.Context(), program, flags...)
			if running {
				text, err := runningState(cmd.Context(), a.client())
				if err != nil {
					return err
				}
				check.Stdin = bytes.NewReader(text)
			}
			check.Stdout, check.Stderr = a.stdout, a.stderr
			err = check.Run()
			if ended, ok := errors.AsType[*exec.ExitError](err); ok && ended.Exited() {
				return exitError(ended.ExitCode()) // it has printed the reason
			}
			if err != nil {
				return fmt.Errorf("run %s: %w", program, err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&running, "against-running", false, "show what would change for the running boxd")
	return cmd
}

// runningState returns the state of the running boxd, as boxd -check -against reads it.
func runningState(ctx context.Context, c *client.Client) ([]byte, error) {
	defer c.Close()
	settings, err := c.Configuration(ctx)
	if err != nil {
		return nil, err
	}
	sessions, err := c.Sessions(ctx, true)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{"settings": settings.Settings, "sessions": sessions})
}

// installedDaemon is where the packages install boxd.
const installedDaemon = "/usr/lib/boxd/boxd"

// daemonProgram returns the boxd of this boxctl: beside it if both were built, else the installed one, else that in PATH.
func daemonProgram() (string, error) {
	own, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find boxd: %w", err)
	}
	for _, program := range []string{filepath.Join(filepath.Dir(own), "boxd"), installedDaemon} {
		if _, err = os.Stat(program); err == nil {
			return program, nil
		}
	}
	program, err := exec.LookPath("boxd")
	if err != nil {
		return "", fmt.Errorf("find boxd, which reads its configuration itself: %w", err)
	}
	return program, nil
}
