// SPDX-License-Identifier: Apache-2.0

// The description of the API that boxd serves is openapi.yaml, which people write and read, as JSON.

package relay

import _ "embed"

//go:embed openapi.json
var document string

// openAPI returns the OpenAPI document as JSON.
func openAPI() string { return document }
