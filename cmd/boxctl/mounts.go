// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

func (a *app) mountCommand() *cobra.Command {
	var req api.MountRequest
	var l *listing[api.SessionMount]
	cmd := &cobra.Command{
		Use:   "mount [flags] BOX [SOURCE:TARGET[:ro[:OWNER-UID]]]...",
		Short: "Mount host directories in a running box",
		Long: `mount mounts directories of this host read-only in a running box; programs see them at once. Without
directories it lists the mounts of the box.

TARGET is below /workspace, /home/box or /tmp, or at or below /mnt, /data, /srv, /opt, /media, /app,
/work, /src or /code; -v of run and create takes almost any path. Missing directories are created,
and removed with the mount; what an existing one has is hidden until then. --replace replaces the
mount on the target in one step; files that are open in the old one stay open.`,
		Args: usage(cobra.MinimumNArgs(1)),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if len(args) == 1 {
				list, err := c.Mounts(cmd.Context(), args[0])
				return l.print(list, api.MountList{Mounts: list}, err, func() error { return a.printMounts(list) })
			}
			var all []api.MountRequest
			for _, arg := range args[1:] {
				one, err := parse(arg, req)
				if err != nil {
					return &usageError{err: err}
				}
				all = append(all, one)
			}
			list := []api.SessionMount{}
			var errs []error
			for i := range all {
				m, _, err := c.AddMount(cmd.Context(), args[0], &all[i])
				if err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", render.Printable(all[i].Target), err))
					continue
				}
				list = append(list, m)
			}
			errs = append(errs, l.print(list, api.MountList{Mounts: list}, nil, func() error { return nil }))
			return errors.Join(errs...)
		}),
	}
	l = newListing(a, cmd, "targets", func(m *api.SessionMount) string { return client.PathOf(m.Target, m.TargetBase64) })
	cmd.Flags().BoolVar(&req.Replace, "replace", false, "replace the mount on the same target")
	cmd.Flags().BoolVar(&req.NoSymlinks, "nosymfollow", false, "do not let programs follow symbolic links in the directory")
	return cmd
}

// parse reads SOURCE:TARGET[:MODE[:OWNER]]. The default mode is ro.
func parse(text string, m api.MountRequest) (api.MountRequest, error) {
	one, err := parseMount("", text)
	m.Source, m.Target, m.Mode, m.Owner = one.Source, one.Target, cmp.Or(one.Mode, "ro"), one.Owner
	return m, err
}

func (a *app) printMounts(list []api.SessionMount) error {
	return table(a.stdout, "TARGET\tSOURCE\tMODE\tLIVE", list, func(m *api.SessionMount) string {
		live := "no"
		if m.Live {
			live = strings.Join(m.Attributes, ",")
		}
		return strings.Join([]string{render.Printable(client.PathOf(m.Target, m.TargetBase64)), render.Printable(client.PathOf(m.Source, m.SourceBase64)), m.Mode, live}, "\t")
	})
}

func (a *app) umountCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "umount [flags] BOX TARGET...",
		Short: "Unmount directories from a running box",
		Long: `umount removes mounts that boxctl mount added, and the directories created for them. A mount in use
is not removed, and the programs that use it are listed. With --force it is removed anyway: files
that are open stay open, and nothing else can be opened.`,
		Args: usage(cobra.MinimumNArgs(2)),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			var errs []error
			for _, target := range args[1:] {
				err := c.RemoveMount(cmd.Context(), args[0], target, force)
				if err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", render.Printable(target), err))
				}
				if !a.json {
					printUsers(a.stderr, client.MountUsersOf(err))
				}
			}
			return errors.Join(errs...)
		}),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "unmount even if it is in use")
	return cmd
}

func printUsers(w io.Writer, list []api.MountUser) {
	if len(list) == 0 {
		return
	}
	_ = table(w, "PID\tPROGRAM\tUSED AS\tPATH", list, func(u *api.MountUser) string { // the error repeats it
		pid := "-"
		if u.PID > 0 {
			pid = strconv.FormatUint(uint64(u.PID), 10)
		}
		return strings.Join([]string{pid, render.Printable(u.Program), render.Printable(u.How), render.Printable(u.Path)}, "\t")
	})
}
