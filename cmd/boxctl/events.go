// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// timeLayout is the time format of the columns.
const timeLayout = "2006-01-02 15:04:05"

func (a *app) eventsCommand() *cobra.Command {
	var o client.EventOptions
	var quiet bool
	format := formatFlag{typ: reflect.TypeFor[api.Event]()}
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show recent events, or follow new ones",
		Long: `events prints the events that boxd recorded: boxes, programs and processes that start and end,
refused requests, limits that were reached, and configuration changes. boxd stores the last 8192
events in memory. Operators see all events, other users those of their own boxes and requests.

With -f it follows new events, also when boxd restarts. Missing events are reported (gap).`,
		Args: usage(cobra.NoArgs),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
			defer stop()
			lines := json.NewEncoder(a.stdout)
			lines.SetEscapeHTML(false)
			err := c.Events(ctx, o, func(e *api.Event) error {
				if a.json {
					return lines.Encode(e)
				}
				if format.parsed != nil {
					return format.print(a, e)
				}
				text := eventLine(e)
				if quiet {
					text = e.ID + "\n"
				}
				_, err := io.WriteString(a.stdout, text)
				return err
			})
			if errors.Is(err, context.Canceled) {
				return nil // the user has stopped following
			}
			return err
		}),
	}
	flags := cmd.Flags()
	format.add(cmd, "")
	cmd.PreRunE = func(*cobra.Command, []string) error { return a.oneForm(format.parsed != nil, quiet) }
	flags.BoolVarP(&quiet, "quiet", "q", false, "print only the ids")
	flags.BoolVarP(&o.Follow, "follow", "f", false, "follow new events")
	flags.StringVar(&o.Session, "session", "", "`BOX` only events of this box")
	flags.StringSliceVar(&o.Types, "type", nil, "`TYPES` only events of these types, for example session.ended,oom")
	flags.StringVar(&o.After, "after", "", "`ID` only events after this one; \"latest\" means from now on")
	return cmd
}

// eventLine formats an event as a line.
func eventLine(e *api.Event) string {
	words := []string{e.Time.Local().Format(timeLayout), fmt.Sprintf("%-17s", e.Type)}
	for _, part := range []struct{ name, value string }{
		{"", e.Session}, {"process=", e.Process}, {"exec=", e.Exec}, {"owner=", e.Owner}, {"by=", by(e)}, {"reason=", e.Reason}, {"", e.Detail},
	} {
		if part.value != "" {
			words = append(words, part.name+visible(part.value))
		}
	}
	if e.TookMS > 0 {
		words = append(words, "took="+(time.Duration(e.TookMS*1000)*time.Microsecond).String())
	}
	if e.Gap != nil && e.Gap.Restarted {
		words = append(words, "boxd was restarted; events before that are lost")
	}
	if e.Gap != nil && e.Gap.Missed > 0 {
		words = append(words, fmt.Sprintf("%d events are lost", e.Gap.Missed))
	}
	return strings.Join(words, " ") + "\n"
}

// by returns the principal of an event, "" if it is the owner.
func by(e *api.Event) string {
	if e.Principal == e.Owner {
		return ""
	}
	return e.Principal
}

func (a *app) errorsCommand() *cobra.Command {
	var l *listing[api.RecentError]
	cmd := &cobra.Command{
		Use:   "errors",
		Short: "Show recent errors",
		Long: `errors prints the errors that your last requests ended with, at most 64. Operators see the errors of
all users, and those of boxd itself.`,
		Args: usage(cobra.NoArgs),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			list, err := c.Errors(cmd.Context())
			return l.print(list.Errors, list, err, func() error {
				return table(a.stdout, "TIME\tPRINCIPAL\tKIND\tROUTE\tREQUEST\tERROR", list.Errors, func(e *api.RecentError) string {
					return strings.Join([]string{e.Time.Local().Format(timeLayout), orElse(render.Person(e.Principal), "boxd"), e.Kind, orElse(e.Route, "-"), orElse(e.Request, "-"), visible(e.Detail)}, "\t")
				})
			})
		}),
	}
	l = newListing(a, cmd, "ids of requests", func(e *api.RecentError) string { return e.Request })
	return cmd
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return visible(s)
}

// visible replaces unprintable characters, which could control the terminal.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
