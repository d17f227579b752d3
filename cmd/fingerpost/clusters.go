package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

func clustersCommand() *cobra.Command {
	var addr, output string
	cmd := &cobra.Command{
		Use:   "clusters",
		Short: "Show every cluster, its state and the age of the last contact",
		Long: `Show every cluster, its state and the age of the last contact, as a running server knows them.

States: Connecting (never heard), Live (in contact), Suspect and Stale (out of contact; what the cluster said
last is kept). The debug server listens on the server's loopback address unless it was told otherwise: use
'kubectl port-forward' from elsewhere.`,
		Example: "  fingerpost clusters\n  fingerpost clusters -o json | jq '.clusters[] | select(.state != \"Live\")'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
			defer cancel()
			body, err := getPage(ctx, addr, "/debug/clusters")
			if err != nil {
				return err
			}
			switch output {
			case "json":
				_, err = cmd.OutOrStdout().Write(body)
				return err
			case "table":
				return printClusters(cmd.OutOrStdout(), body, time.Now())
			default:
				return fmt.Errorf("-o %s is neither table nor json", output)
			}
		},
	}
	cmd.Flags().StringVar(&addr, "debug-addr", "127.0.0.1:9998", "address of the server's debug server")
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}

// getPage returns a page of a server's debug server.
func getPage(ctx context.Context, addr, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return nil, fmt.Errorf("--debug-addr: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("no debug server at %s (name it with --debug-addr): %w", addr, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s%s: %s: %s", addr, path, response.Status, body)
	}
	return body, err
}

func printClusters(to io.Writer, body []byte, now time.Time) error {
	var page clustersPage
	if err := json.Unmarshal(body, &page); err != nil {
		return fmt.Errorf("the debug server's answer: %w", err)
	}
	w := tabwriter.NewWriter(to, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "CLUSTER\tSTATE\tLAST CONTACT\tSERVICES\tPODS\tCREDENTIALS\tNOTE")
	for _, c := range page.Clusters {
		name, contact, note := c.Name, "never", c.Contact
		if c.Local {
			name += " (local)"
		}
		if c.LastContact != nil {
			contact = now.Sub(*c.LastContact).Round(time.Second).String() + " ago"
		}
		if note == "" {
			note = c.Credentials
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\n", name, c.State, contact, objects(c, "services"), objects(c, "pods"), c.Source, note)
	}
	return w.Flush()
}

func objects(c clusterPage, resource string) int {
	for _, k := range c.Kinds {
		if k.Resource == resource {
			return k.Objects
		}
	}
	return 0
}
