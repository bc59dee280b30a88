// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/boxd-dev/boxd/relay/client"
)

// Where the help says BOX, Tab completes boxes; and no missing command or flag is offered.
func TestTabOffersBoxesWhereverHelpSaysBox(t *testing.T) {
	var a app
	root := a.root()
	exists := map[string]bool{}
	eachCommand(root, func(cmd *cobra.Command) {
		path := strings.TrimPrefix(cmd.CommandPath(), root.Name()+" ")
		exists[path] = true
		if strings.Contains(cmd.Use+" ", " BOX ") && cmd.ValidArgsFunction == nil || strings.Contains(cmd.Use, "[BOX]") && cmd.ValidArgsFunction == nil {
			t.Errorf("boxctl %s: nothing is offered for BOX of %q", path, cmd.Use)
		}
		for _, f := range []string{"image", "network", "profile", "workspace", "skill", "drive", "session"} {
			if cmd.LocalFlags().Lookup(f) == nil {
				continue
			}
			if _, ok := cmd.GetFlagCompletionFunc(f); !ok {
				t.Errorf("boxctl %s --%s: nothing is offered", path, f)
			}
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			exists["--"+f.Name], exists[path+" --"+f.Name] = true, true
		})
	})
	c := completer{func() *client.Client { return nil }}
	for path := range c.arguments() {
		if !exists[path] {
			t.Errorf("arguments are offered for %q, which is no command", path)
		}
	}
	for name := range c.flags() {
		if !exists[name] {
			t.Errorf("values are offered for %q, which is no flag", name)
		}
	}
}
