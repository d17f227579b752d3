package identity

// A Check is one that a request has not passed, as a label of metrics and in the log.
type Check string

// The checks, in the order in which they are made.
const (
	CheckIssuer    Check = "issuer"    // an issuer is loaded
	CheckRequest   Check = "request"   // everything is there, and the signing request can be read
	CheckChain     Check = "chain"     // the issuer verifies at this moment
	CheckNames     Check = "names"     // the signing request is for the identity, and for nothing else
	CheckKey       Check = "key"       // its key is of a kind that proxies have
	CheckSignature Check = "signature" // it is signed with that key
	CheckTurn      Check = "turn"      // few enough tokens are being reviewed
	CheckReview    Check = "review"    // the token can be reviewed
	CheckToken     Check = "token"     // it is one
	CheckAudience  Check = "audience"  // it is for this purpose
	CheckAccount   Check = "account"   // it is that of a ServiceAccount
	CheckIdentity  Check = "identity"  // whose identity was asked for
	CheckLeaf      Check = "leaf"      // the leaf verifies
)

// A Cause is whose turn it is to act on a Refusal.
type Cause int

// The causes.
const (
	Malformed   Cause = iota // the caller's: no request like this is ever answered
	Denied                   // the caller's: it may not have what it asks for
	Unavailable              // the control plane's: the same request may be answered later
	Bug                      // of this package
)

// A Refusal is why a caller gets no leaf. Its text has nothing of a token or of a signing request in it.
type Refusal struct {
	Check Check
	Cause Cause
	Text  string // for the caller
	Err   error  // what has led to it, for the log; may be nil
}

// Error returns the text for the caller.
func (r *Refusal) Error() string { return r.Text }

// Unwrap returns what has led to it.
func (r *Refusal) Unwrap() error { return r.Err }

func malformed(check Check, text string) *Refusal {
	return &Refusal{Check: check, Cause: Malformed, Text: text}
}

func denied(check Check, text string) *Refusal {
	return &Refusal{Check: check, Cause: Denied, Text: text}
}

func unavailable(check Check, text string, err error) *Refusal {
	return &Refusal{Check: check, Cause: Unavailable, Text: text, Err: err}
}
