package controlplane

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// A Request is what the API server's audit log holds about one request, when it
// was answered; for a watch that is its beginning, and again its end.
type Request struct {
	Time      time.Time
	Sent      time.Time // by the client, to the millisecond; zero unless its Audit-ID is a UUID of version 7
	User      string    // such as admin or system:serviceaccount:NAMESPACE:NAME
	UserAgent string
	Verb      string // such as get, list, watch, create, update, patch, delete
	URI       string
	// Of the object; Resource is RESOURCE or RESOURCE/SUBRESOURCE. All empty
	// for requests such as that for /readyz.
	Group, Resource, Namespace, Name string
	Code                             int // the HTTP status; 0 if it never was sent
}

// AuditLog returns the path of the audit log. It exists if Options.Audit is set.
func (c *Cluster) AuditLog() string { return c.file(auditLogFile) }

// Requests returns what is in the audit log so far, in its order.
func (c *Cluster) Requests() ([]Request, error) {
	log, err := os.ReadFile(c.AuditLog())
	if err != nil {
		return nil, fmt.Errorf("read the audit log of cluster %q, is Options.Audit set? %w", c.name, err)
	}
	var requests []Request
	for line := range bytes.Lines(log) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // being written
		}
		var event struct {
			AuditID        string
			StageTimestamp time.Time
			User           struct{ Username string }
			UserAgent      string
			Verb           string
			RequestURI     string
			ObjectRef      struct{ APIGroup, Resource, Subresource, Namespace, Name string }
			ResponseStatus struct{ Code int }
		}
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("read the audit log of cluster %q: %w", c.name, err)
		}
		request := Request{
			Time:      event.StageTimestamp,
			Sent:      timeOf(event.AuditID),
			User:      event.User.Username,
			UserAgent: event.UserAgent,
			Verb:      event.Verb,
			URI:       event.RequestURI,
			Group:     event.ObjectRef.APIGroup,
			Resource:  event.ObjectRef.Resource,
			Namespace: event.ObjectRef.Namespace,
			Name:      event.ObjectRef.Name,
			Code:      event.ResponseStatus.Code,
		}
		if event.ObjectRef.Subresource != "" {
			request.Resource += "/" + event.ObjectRef.Subresource
		}
		requests = append(requests, request)
	}
	return requests, nil
}

// timeOf returns when a UUID of version 7 was made; the zero time for any other text.
func timeOf(id string) time.Time {
	digits := strings.ReplaceAll(id, "-", "")
	if len(digits) != 32 || digits[12] != '7' {
		return time.Time{}
	}
	milliseconds, err := strconv.ParseInt(digits[:12], 16, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(milliseconds)
}
