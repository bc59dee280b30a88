// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
)

// langbot checks the table [langbot], and that the names in it exist.
func (c *Config) langbot() error {
	l := &c.LangBot
	errs := []error{l.Validate()}
	if !l.On(false) {
		return errs[0]
	}
	if _, ok := c.Principals[l.Principal]; !ok {
		errs = append(errs, fmt.Errorf("langbot.principal = %q: must be the name of a table [principals.NAME], the owner of LangBot's sessions; there is no [principals.%s]", l.Principal, l.Principal))
	}
	if _, ok := c.Profiles[l.Profile]; !ok {
		errs = append(errs, fmt.Errorf("langbot.profile = %q: must be the name of a profile", l.Profile))
	}
	return errors.Join(errs...)
}
