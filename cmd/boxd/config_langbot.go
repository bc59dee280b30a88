// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
)

// langbot checks the table [langbot], and that what it names is there.
func (c *Config) langbot() error {
	l := &c.LangBot
	errs := []error{l.Validate()}
	if l.Listen == "" {
		return errs[0]
	}
	if _, ok := c.Principals[l.Principal]; !ok {
		errs = append(errs, fmt.Errorf("langbot.principal = %q: there is no table [principals.%s]: allowed is the name of one, which says whose LangBot's sessions and files are", l.Principal, l.Principal))
	}
	if _, ok := c.Profiles[l.Profile]; !ok {
		errs = append(errs, fmt.Errorf("langbot.profile = %q: allowed is the name of a profile", l.Profile))
	}
	return errors.Join(errs...)
}
