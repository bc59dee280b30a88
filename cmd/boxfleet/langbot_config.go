// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/BurntSushi/toml"

	rpc "github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

// langBotConfig is the table [langbot] of gateway.toml. Its keys are those of the table in box.toml that are about who connects.
type langBotConfig struct {
	Listen    string `toml:"listen"`     // address; "": LangBot is not served
	Principal string `toml:"principal"`  // name in [principals], here and on nodes, of the owner of all sessions
	TokenFile string `toml:"token_file"` // of the control token; "": there is none
	Insecure  bool   `toml:"insecure"`   // no token is needed
	Instance  string `toml:"instance"`   // the only LangBot that is served; "": the first that connects
}

// langBotKeys says of an unknown key of [langbot] which there are.
func langBotKeys(key toml.Key) string {
	if key[0] != "langbot" {
		return ""
	}
	var names []string
	for t, i := reflect.TypeFor[langBotConfig](), 0; i < t.NumField(); i++ {
		names = append(names, t.Field(i).Tag.Get("toml"))
	}
	return ": [langbot] has " + strings.Join(names, ", ")
}

// validateLangBot checks the table [langbot], and returns the wrong key with what is allowed.
func (c *gatewayConfig) validateLangBot() (key string, err error) {
	l := &c.LangBot
	if l.TokenFile != "" && !filepath.IsAbs(l.TokenFile) {
		return "token_file", fmt.Errorf("langbot.token_file = %q: must be an absolute path, or empty", l.TokenFile)
	}
	if l.Instance != "" && !rpc.ValidInstance(l.Instance) {
		return "instance", fmt.Errorf("langbot.instance = %q: must be an id such as LangBot's, of letters, digits and . _ : -, or empty", l.Instance)
	}
	if l.Principal == "" {
		return "principal", errors.New(`langbot.principal = "": must be the name of a table [principals.NAME]`)
	}
	if l.Listen == "" {
		return "", nil
	}
	if _, ok := c.Principals[l.Principal]; !ok {
		return "principal", fmt.Errorf("langbot.principal = %q: must be the name of a table [principals.NAME], the owner of LangBot's sessions; there is no [principals.%s]", l.Principal, l.Principal)
	}
	if err := c.validateListen("langbot.listen", l.Listen); err != nil {
		return "listen", err
	}
	return "token_file", rpc.Closed(l.Listen, l.TokenFile, l.Insecure)
}

// openLangBot opens the address for LangBot; nil: it is not served.
func openLangBot(ctx context.Context, cfg *gatewayConfig, g *gateway, log *slog.Logger) (*langBotFront, *listener, error) {
	if cfg.LangBot.Listen == "" {
		return nil, nil, nil
	}
	token, err := rpc.ReadToken(cfg.LangBot.TokenFile)
	if err != nil {
		return nil, nil, err
	}
	front := newLangBotFront(g, cfg, token)
	ln, err := openListener(ctx, cfg, "langbot.listen", cfg.LangBot.Listen, front, log)
	if err != nil {
		return nil, nil, err
	}
	return front, ln, nil
}
