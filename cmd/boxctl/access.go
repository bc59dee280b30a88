// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// addTokenFlag adds the flag of the token. The default is BOXD_TOKEN, or the content of the file that BOXD_TOKEN_FILE
// names.
func (a *app) addTokenFlag(set *pflag.FlagSet) {
	a.token = os.Getenv("BOXD_TOKEN")
	if path := os.Getenv("BOXD_TOKEN_FILE"); path != "" && a.token == "" {
		a.token = readToken(path)
	}
	set.Var(tokenValue{&a.token}, "token", "`TOKEN` access token, or @FILE; also BOXD_TOKEN or BOXD_TOKEN_FILE")
}

// maxToken is more than the length of any token, in bytes.
const maxToken = 4096

// readToken reads a token. An unreadable file yields a token that boxd refuses.
func readToken(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return "unreadable"
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return "unreadable"
	}
	return strings.TrimSpace(string(data))
}

// tokenValue is a flag value that help does not show.
type tokenValue struct{ token *string }

// String shows nothing.
func (tokenValue) String() string { return "" }

// Set takes a token, or @FILE.
func (h tokenValue) Set(text string) error {
	if path, ok := strings.CutPrefix(text, "@"); ok {
		if text = readToken(path); text == "unreadable" {
			return fmt.Errorf("%s cannot be read", path)
		}
	}
	*h.token = text
	return nil
}

// Type is the placeholder in help.
func (tokenValue) Type() string { return "TOKEN" }

// tokenCommand makes tokens.
func (a *app) tokenCommand() *cobra.Command {
	return group("token", "Create access tokens", "token manages the access tokens of boxd(8).", a.tokenNewCommand())
}

// token is the output for a new token.
type token struct {
	Token string `json:"token"`
	E2B   string `json:"e2b_key"` // in the form of API keys that older E2B clients want
	Line  string `json:"line"`
}

func (a *app) tokenNewCommand() *cobra.Command {
	var role, until string
	var routes []string
	cmd := &cobra.Command{
		Use:   "new [flags] NAME PRINCIPAL",
		Short: "Create a token and print it once",
		Long: `new prints a token, and the lines that make boxd accept it. Add these lines to the token file of
access.tokens in box.toml, /etc/boxd/tokens (owned by root, mode 0600), and run
systemctl reload boxd. The file stores only a hash, so the token cannot be printed again.

PRINCIPAL is a table [principals.NAME] of box.toml. A client with the token acts as that principal,
with at most its role.`,
		Args: usage(cobra.ExactArgs(2)),
		RunE: func(_ *cobra.Command, args []string) error {
			lines := []string{"[[token]]", fmt.Sprintf("name = %q", args[0])}
			secret := "boxd_" + rand.Text() + rand.Text()
			sum := sha256.Sum256([]byte(secret))
			lines = append(lines, fmt.Sprintf("sha256 = %q", hex.EncodeToString(sum[:])), fmt.Sprintf("principal = %q", args[1]))
			if role != "" {
				lines = append(lines, fmt.Sprintf("role = %q", role))
			}
			if len(routes) > 0 {
				quoted := make([]string, len(routes))
				for i, r := range routes {
					quoted[i] = fmt.Sprintf("%q", r)
				}
				lines = append(lines, "routes = ["+strings.Join(quoted, ", ")+"]")
			}
			if until != "" {
				end, err := parseUntil(until, time.Now())
				if err != nil {
					return &usageError{err: err}
				}
				lines = append(lines, "expires = "+end.UTC().Format(time.RFC3339))
			}
			t := token{secret, "e2b_" + hex.EncodeToString([]byte(secret)), strings.Join(lines, "\n") + "\n"}
			if a.json {
				return a.printJSON(t)
			}
			_, err := fmt.Fprintf(a.stdout, "%s\n\n# for the file of tokens, /etc/boxd/tokens; then: systemctl reload boxd\n%s", t.Token, t.Line)
			return err
		},
	}
	cmd.Flags().StringVar(&role, "role", "", "`ROLE` highest role of the token: viewer, user, operator or admin")
	cmd.Flags().StringArrayVar(&routes, "route", nil, "`ROUTE` allow only this API route, for example 'GET /v1/sessions*'")
	cmd.Flags().StringVar(&until, "until", "", "`WHEN` expiry, for example 720h or 2027-01-31T00:00:00Z")
	return cmd
}

// parseUntil reads a duration from now, or a point in time.
func parseUntil(text string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		if !at.After(now) {
			return at, fmt.Errorf("--until %s: must be in the future", text)
		}
		return at, nil
	}
	d, err := quantity.ParseDuration(text)
	if err != nil || d <= 0 {
		return now, fmt.Errorf("--until %s: must be a time from now, for example 1h, or a date, for example 2027-01-31T00:00:00Z", text)
	}
	return now.Add(time.Duration(d)), nil
}

// grantCommand grants temporary roles.
func (a *app) grantCommand() *cobra.Command {
	var until string
	cmd := &cobra.Command{
		Use:   "grant [flags] PRINCIPAL ROLE",
		Short: "Grant a role for a limited time",
		Long: `grant gives a principal the role viewer, user, operator or admin until a given time. The principal
is a table [principals.NAME] of box.toml or a user, for example alice or uid:1000. A grant expires
by itself, also while boxd is stopped, and replaces an earlier grant. Only admins can grant roles.`,
		Args: usage(cobra.ExactArgs(2)),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if role := args[1]; role == "none" {
				return &usageError{err: errors.New("grant: the role must be viewer, user, operator or admin, not none"), hint: "boxctl revoke " + render.ShellWord(args[0])}
			}
			now := time.Now()
			end, err := parseUntil(until, now)
			if until == "" {
				return &usageError{
					err:  errors.New("--until is missing: every grant needs an end"),
					hint: fmt.Sprintf("boxctl grant %s %s --until 1h", render.ShellWord(args[0]), args[1]),
				}
			}
			if err != nil {
				return &usageError{err: err}
			}
			g, err := c.Grant(cmd.Context(), &api.GrantRequest{Principal: args[0], Role: args[1], For: quantity.Duration(end.Sub(now).Round(time.Millisecond))})
			return a.answer(g, err, func() error { return printGrants(a.stdout, []api.Grant{g}) })
		}),
	}
	var l *listing[api.Grant]
	cmd.Flags().StringVar(&until, "until", "", "`WHEN` end of the role, for example 1h or 2027-01-31T00:00:00Z")
	ls := &cobra.Command{
		Use:   "ls",
		Short: "List granted roles",
		Args:  usage(cobra.NoArgs),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			list, err := c.Grants(cmd.Context())
			return l.print(list, api.GrantList{Grants: list}, err, func() error { return printGrants(a.stdout, list) })
		}),
	}
	l = newListing(a, ls, "principals", func(g *api.Grant) string { return g.Principal })
	cmd.AddCommand(ls, a.revokeCommand())
	return cmd
}

// revokeCommand ends grants: boxctl revoke, and boxctl grant revoke.
func (a *app) revokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke PRINCIPAL",
		Short: "Revoke a granted role",
		Long:  "revoke ends the grant of a principal, and the requests that depend on it.",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return c.RevokeGrant(cmd.Context(), args[0])
		}),
	}
}

func printGrants(w io.Writer, list []api.Grant) error {
	return table(w, "PRINCIPAL\tROLE\tUNTIL\tBY", list, func(g *api.Grant) string {
		return fmt.Sprintf("%s\t%s\t%s\t%s", render.Person(g.Principal), g.Role, g.Until.Local().Format(time.DateTime), render.Person(g.By))
	})
}
