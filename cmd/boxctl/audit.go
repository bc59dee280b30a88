// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/internal/hashchain"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// auditDir is the audit log directory of an installed boxd.
const auditDir = "/var/lib/boxd/audit"

func (a *app) auditCommand() *cobra.Command {
	var o client.AuditOptions
	var l *listing[api.AuditRecord]
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show or verify the audit log",
		Long: `audit prints the last records of the audit log: one for each request that was to change something,
with its caller, its content and its outcome. It needs the operator role. boxctl audit verify finds
changes to the log itself.`,
		Args: usage(cobra.NoArgs),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			list, err := c.Audit(cmd.Context(), o)
			return l.print(list.Records, list, err, func() error {
				err := table(a.stdout, "SEQ\tTIME\tPRINCIPAL\tVIA\tSTATUS\tOUTCOME\tROUTE\tBOX\tREQUEST", list.Records, func(r *api.AuditRecord) string {
					return fmt.Sprintf("%d\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s", r.Seq, r.Time.Local().Format(timeLayout), orElse(render.Person(r.Principal), "boxd"), orElse(r.Via, "-"), r.Status,
						orElse(r.Outcome, r.Kind), orElse(r.Route, "-"), orElse(r.Session, "-"), visible(requested(r)))
				})
				if err != nil || !list.Cut {
					return err
				}
				_, err = fmt.Fprintln(a.stderr, "older records are not shown (limit 16 MiB); filter with --session, --principal or --request")
				return err
			})
		}),
	}
	flags := cmd.Flags()
	l = newListing(a, cmd, "ids of requests", func(r *api.AuditRecord) string { return r.Request })
	flags.IntVarP(&o.N, "number", "n", 100, "`N` print at most this many records")
	flags.StringVar(&o.Session, "session", "", "`BOX` only records about this box")
	flags.StringVar(&o.Principal, "principal", "", "`PRINCIPAL` only calls by this principal, for example uid:1000")
	flags.StringVar(&o.Request, "request", "", "`ID` only the call with this request id")
	cmd.AddCommand(a.auditVerifyCommand())
	return cmd
}

// requested describes what a call asked for.
func requested(r *api.AuditRecord) string {
	if r.What == nil {
		return r.Detail
	}
	words := r.What.Argv
	if r.What.SHA256 != "" {
		words = []string{"sha256:" + r.What.SHA256}
	}
	return strings.Join(append(slices.Clip(words), r.What.Changes...), " ")
}

func (a *app) auditVerifyCommand() *cobra.Command {
	var head string
	cmd := &cobra.Command{
		Use:   "verify [DIR]",
		Short: "Verify that the audit log was not changed",
		Long: `verify reads a whole audit log, without boxd, and reports each record that was edited, moved or
removed. Without DIR it reads ` + auditDir + `.

Records that were cut off at the end can only be found with a head that was noted before: verify
prints the head, boxd logs it from time to time ("audit log", head), and --head takes it. The exit
code is 1 if there are problems.`,
		Args: usage(cobra.MaximumNArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			dir := auditDir
			if len(args) > 0 {
				dir = args[0]
			}
			var expected *hashchain.Link
			if head != "" {
				link, err := hashchain.ParseLink(head)
				if err != nil {
					return &usageError{err: err}
				}
				expected = &link
			}
			if _, err := os.ReadDir(dir); len(args) == 0 && errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s does not exist: pass DIR, the directory audit in state_dir of box.toml", dir)
			} else if err != nil {
				return fmt.Errorf("audit log: %w", err)
			}
			report, err := hashchain.Verify(os.DirFS(dir), expected)
			if err != nil {
				return fmt.Errorf("audit log: %w", err)
			}
			if err := a.printReport(report); err != nil {
				return err
			}
			if len(report.Problems) > 0 {
				return exitError(1)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&head, "head", "", "`NUMBER:HASH` head noted earlier; the log must not end before it")
	return cmd
}

func (a *app) printReport(r *hashchain.Report) error {
	if a.json {
		return a.printJSON(r)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(a.stdout, "%s\n", p.Text)
	}
	fmt.Fprintf(a.stdout, "%d records in %d files, %d problems\n", r.Records, r.Files, len(r.Problems))
	if r.Repairs > 0 || r.Lost > 0 {
		fmt.Fprintf(a.stdout, "boxd was killed %d times while writing a record, and lost %d records that it could not write\n", r.Repairs, r.Lost)
	}
	if r.Head != "" {
		fmt.Fprintf(a.stdout, "head %s\n", r.Head)
	}
	return nil
}
