"""Makes the bucket that STORAGE_URL names, if it is not there."""

import os
from urllib.parse import parse_qs, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError


def main() -> None:
    """Waits for nothing: the store must be up."""
    url = urlsplit(os.environ["STORAGE_URL"])
    query = {name: values[0] for name, values in parse_qs(url.query).items()}
    style = Config(s3={"addressing_style": "path"})  # the bucket's name is no host name here
    client = boto3.client(
        "s3", endpoint_url=query.get("endpoint"), region_name=query.get("region", "us-east-1"), config=style
    )
    try:
        client.head_bucket(Bucket=url.netloc)
        print(f"The bucket {url.netloc} is there.")
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
            raise
        client.create_bucket(Bucket=url.netloc)
        print(f"Made the bucket {url.netloc}.")


if __name__ == "__main__":
    main()
